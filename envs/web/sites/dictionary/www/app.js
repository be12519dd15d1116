// The dictionary's pages.

import { visit } from "/kit/address.js";
import { add, capital, count, fill, h, icon, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { apply, href, onChange, query, site, state } from "/kit/site.js";
import {
  autocomplete,
  cookieBanner,
  datePicker,
  dropdown,
  field,
  modal,
  pagination,
  tabs,
  toast,
  validate,
} from "/kit/ui.js";
import {
  BANDS,
  FIELDS,
  NAME,
  QUIZZES,
  SETTINGS,
  browse,
  freshState,
  makeWorld,
  quizOf,
  suggest,
} from "/world.js";
import { PARTS, listProblem, suggestionRules, transitions } from "/transitions.js";

const PAGES = {
  "": homePage,
  word: wordPage,
  browse: browsePage,
  lists: listsPage,
  day: dayPage,
  quiz: quizPage,
  suggest: suggestPage,
  settings: settingsPage,
};

site({
  name: "dictionary",
  world: makeWorld,
  state: freshState,
  transitions,
  harmless: ["cookies", "lists", ...Object.keys(SETTINGS)],
  show(world) {
    const main = h("main", {});
    document.body.append(header(world), main, footer(world));
    const dress = () => {
      for (const size of ["small", "large"]) document.body.classList.toggle(size, state().size === size);
    };
    onChange(dress);
    dress();
    const page = PAGES[location.pathname.split("/")[1]] ?? homePage;
    document.title = `${page(world, main) ?? NAME} | ${NAME}`;
    cookieBanner({ name: NAME, text: "Cookies keep your word lists and settings on this device." });
  },
});

// ---- around every page ----

const open = (word) => href("/word/", { w: word });

function finder(world, large) {
  const input = h("input", {
    type: "search",
    name: "q",
    placeholder: "Look up a word",
    "aria-label": "Look up a word",
  });
  const form = h(
    "form",
    {
      class: `finder${large ? " large" : ""}`,
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        const word = tidy(input.value).toLowerCase();
        if (word) visit(open(word));
      },
    },
    input,
    h("button", { class: "primary", "aria-label": "Look up" }, icon("search", 20)),
  );
  autocomplete(input, (text) =>
    tidy(text).length < 2
      ? []
      : suggest(world, tidy(text)).map((entry) => ({
          text: entry.word,
          detail: entry.part,
          act: () => visit(open(entry.word)),
        })),
  );
  return form;
}

function header(world) {
  return h(
    "header",
    { class: "top" },
    h(
      "div",
      { class: "bar" },
      h("a", { class: "logo", href: "/" }, "word", h("b", {}, "hoard")),
      location.pathname === "/" ? null : finder(world, false),
      h(
        "nav",
        {},
        h("a", { href: "/browse/", id: "browse" }, "Browse"),
        h("a", { href: "/day/", id: "day" }, "Word of the day"),
        h("a", { href: "/quiz/", id: "quiz" }, "Quizzes"),
        h("a", { href: "/lists/", id: "lists" }, icon("bookmark", 16), "Word lists"),
        h("a", { href: "/settings/", id: "settings", "aria-label": "Settings" }, "Settings"),
      ),
    ),
  );
}

const footer = (world) =>
  h(
    "footer",
    { class: "bottom" },
    h(
      "p",
      {},
      `${NAME} has ${count(world.words.length, "entry", "entries")} of learned English. `,
      h("a", { href: "/suggest/", id: "suggest" }, "Suggest a word"),
    ),
    h(
      "nav",
      {},
      [..."abcdefghijklmnopqrstuvwxyz"].map((letter) =>
        h("a", { href: href("/browse/", { letter }) }, letter.toUpperCase()),
      ),
    ),
  );

function homePage(world, main) {
  const today = world.ofDay(world.today);
  add(
    main,
    h(
      "section",
      { class: "hero" },
      h("h1", {}, "Every learned word has a story"),
      finder(world, true),
      h(
        "p",
        {},
        "Popular: ",
        world.words.slice(40, 45).map((entry) => [h("a", { href: open(entry.word) }, entry.word), "  "]),
      ),
    ),
    h(
      "div",
      { class: "panels" },
      h(
        "section",
        { class: "panel-box day" },
        h("small", {}, `Word of the day · ${dates.long(world.today)}`),
        h("h2", {}, h("a", { href: open(today.word) }, today.word)),
        h("p", { class: "soft" }, `${today.part} · ${today.uk}`),
        h("p", {}, today.definitions[0]),
        h("a", { href: "/day/" }, "Earlier words"),
      ),
      h(
        "section",
        { class: "panel-box" },
        h("small", {}, "Test yourself"),
        h("h2", {}, h("a", { href: "/quiz/" }, "Five words, four meanings each")),
        h("p", {}, `${QUIZZES} quizzes wait for you. Can you get all five right?`),
        h("a", { class: "button", href: "/quiz/" }, "To the quizzes"),
      ),
      h(
        "section",
        { class: "panel-box" },
        h("small", {}, "By field"),
        h(
          "ul",
          {},
          FIELDS.map((name) =>
            h(
              "li",
              {},
              h("a", { href: href("/browse/", { field: name }) }, name),
              h("span", { class: "soft" }, ` ${world.words.filter((entry) => entry.field === name).length}`),
            ),
          ),
        ),
      ),
    ),
  );
  return "A dictionary of learned words";
}

// ---- one word ----

/** Parts of an entry, the one that the visitor wants to see first in front. */
const openedFirst = (parts) => [
  ...parts.filter(({ id }) => id === state().tab),
  ...parts.filter(({ id }) => id !== state().tab),
];

function wordPage(world, main) {
  const { w = "" } = query();
  const entry = world.byWord.get(w);
  if (!entry) {
    const near = suggest(world, w.slice(0, 4));
    add(
      main,
      h("h1", {}, `No entry for “${w}”`),
      near.length
        ? h(
            "p",
            {},
            "Did you mean: ",
            near.map(({ word }, index) => [index ? ", " : null, h("a", { href: open(word) }, word)]),
            "?",
          )
        : h("p", {}, "Check the spelling, or ", h("a", { href: "/suggest/" }, "suggest the word"), "."),
    );
    return "Not found";
  }
  const heard = h("span", { class: "soft", role: "status" });
  const say = (region, text) =>
    h(
      "p",
      { class: "say" },
      h(
        "button",
        {
          class: "plain",
          "aria-label": `Play ${region} pronunciation`,
          onclick: () => {
            heard.textContent = `Played: ${region}`;
          },
        },
        icon("speaker", 18),
      ),
      h("b", {}, region),
      h("span", { class: "ipa" }, text),
    );
  const more = h(
    "div",
    { hidden: true },
    entry.examples.slice(1).map((text) => h("p", { class: "example" }, text)),
  );
  const lists = () =>
    state()
      .lists.filter(({ words }) => words.includes(entry.word))
      .map(({ name }) => name);
  const where = h("p", { class: "soft", id: "in-lists" });
  const mark = () => {
    where.textContent = lists().length ? `In: ${lists().join(", ")}` : "In none of your lists";
  };
  onChange(mark);
  mark();
  const index = world.words.indexOf(entry);
  const chips = (words) =>
    words.length
      ? h(
          "p",
          { class: "chips" },
          words.map((word) => h("a", { href: open(word) }, word)),
        )
      : h("p", { class: "soft" }, "None listed.");
  add(
    main,
    h(
      "div",
      { class: "columns" },
      h(
        "article",
        {},
        h("h1", { class: "head" }, entry.word),
        h("p", { class: "soft" }, entry.syllables),
        state().accent === "uk"
          ? [say("UK", entry.uk), say("US", entry.us)]
          : [say("US", entry.us), say("UK", entry.uk)],
        heard,
        h("h2", { class: "part" }, entry.part, h("span", { class: "label" }, entry.field)),
        h(
          "ol",
          { class: "senses" },
          entry.definitions.map((text, at) =>
            h("li", {}, text, at === 0 ? h("p", { class: "example" }, entry.examples[0]) : null),
          ),
        ),
        h(
          "button",
          {
            id: "more-examples",
            onclick: (event) => {
              more.hidden = !more.hidden;
              event.currentTarget.textContent = more.hidden ? "More examples" : "Fewer examples";
            },
          },
          "More examples",
        ),
        more,
        tabs(
          openedFirst([
            {
              id: "origin",
              title: "Origin",
              panel: () =>
                h(
                  "div",
                  {},
                  h("p", {}, entry.etymology),
                  h(
                    "dl",
                    { class: "facts" },
                    h("dt", {}, "First known use"),
                    h("dd", { id: "first-use" }, String(entry.year)),
                    h("dt", {}, "Language"),
                    h("dd", {}, entry.language),
                    h("dt", {}, "How often it is met"),
                    h("dd", { id: "band" }, entry.band),
                  ),
                ),
            },
            {
              id: "forms",
              title: "Forms",
              panel: () =>
                h(
                  "dl",
                  { class: "facts" },
                  Object.entries(entry.forms).flatMap(([name, text]) => [
                    h("dt", {}, name),
                    h("dd", {}, text),
                  ]),
                ),
            },
            {
              id: "thesaurus",
              title: "Synonyms",
              panel: () =>
                h(
                  "div",
                  {},
                  h("h3", {}, "Near in meaning"),
                  chips(entry.synonyms),
                  h("h3", {}, "Opposites"),
                  chips(entry.antonyms),
                ),
            },
            {
              id: "translations",
              title: "Translations",
              panel: () =>
                h(
                  "table",
                  { class: "translations" },
                  Object.entries(entry.translations).map(([language, text]) =>
                    h("tr", {}, h("th", {}, language), h("td", {}, text)),
                  ),
                ),
            },
          ]),
        ),
      ),
      h(
        "aside",
        {},
        h(
          "button",
          { class: "primary wide-button", id: "save", onclick: () => saveDialog(entry) },
          icon("bookmark", 17),
          "Save to a list",
        ),
        where,
        h("h3", {}, "Nearby words"),
        h(
          "ul",
          {},
          world.words
            .slice(Math.max(0, index - 4), index + 5)
            .map(({ word }) =>
              h("li", {}, word === entry.word ? h("b", {}, word) : h("a", { href: open(word) }, word)),
            ),
        ),
      ),
    ),
  );
  return entry.word;
}

function saveDialog(entry) {
  const form = h(
    "form",
    { onsubmit: (event) => event.preventDefault() },
    state().lists.map(({ name, words }) =>
      h(
        "label",
        { class: "check" },
        h("input", { type: "checkbox", value: name, checked: words.includes(entry.word) }),
        name,
      ),
    ),
    field({ label: "Or a new list", name: "fresh", required: false }),
  );
  modal({
    title: `Save “${entry.word}”`,
    body: form,
    actions: [
      { text: "Cancel", act() {} },
      {
        text: "Save",
        primary: true,
        act: () => {
          const ticked = [...form.querySelectorAll("input[type=checkbox]")]
            .filter(({ checked }) => checked)
            .map(({ value }) => value);
          apply("word.save", { word: entry.word, lists: ticked, fresh: tidy(form.elements.fresh.value) });
          toast("Saved.");
        },
      },
    ],
  });
}

// ---- browsing ----

function browsePage(world, main) {
  const asked = query();
  const found = browse(world, asked),
    per = state().rows,
    pages = Math.ceil(found.length / per),
    page = Math.min(Math.max(1, Number(asked.page) || 1), Math.max(1, pages));
  const go = (changes) => visit(href("/browse/", { ...asked, page: "", ...changes }));
  const any = (values) => [
    { value: "", text: "Any" },
    ...values.map((value) => ({ value, text: capital(value) })),
  ];
  add(
    main,
    h("h1", {}, "Browse the dictionary"),
    h(
      "nav",
      { class: "letters" },
      h(
        "a",
        {
          href: href("/browse/", { ...asked, letter: "", page: "" }),
          "aria-current": asked.letter ? null : "page",
        },
        "All",
      ),
      [..."abcdefghijklmnopqrstuvwxyz"].map((letter) =>
        h(
          "a",
          {
            href: href("/browse/", { ...asked, letter, page: "" }),
            "aria-current": asked.letter === letter ? "page" : null,
          },
          letter.toUpperCase(),
        ),
      ),
    ),
    h(
      "div",
      { class: "row wrap" },
      dropdown({
        label: "Part of speech",
        id: "part",
        value: asked.part ?? "",
        options: any(["noun", "adjective"]),
        onchange: (part) => go({ part }),
      }),
      dropdown({
        label: "Field",
        id: "field",
        value: asked.field ?? "",
        options: any(FIELDS),
        onchange: (value) => go({ field: value }),
      }),
      dropdown({
        label: "Met",
        id: "met",
        value: asked.band ?? "",
        options: any(BANDS),
        onchange: (band) => go({ band }),
      }),
      h(
        "div",
        { class: "end" },
        dropdown({
          label: "Order",
          id: "order",
          value: asked.sort ?? "az",
          options: [
            ["az", "A to Z"],
            ["oldest", "Oldest first"],
            ["newest", "Newest first"],
            ["length", "Longest first"],
          ].map(([value, text]) => ({ value, text })),
          onchange: (sort) => go({ sort }),
        }),
      ),
    ),
    h("p", { class: "soft", id: "found" }, count(found.length, "word")),
    h(
      "table",
      { class: "words" },
      h(
        "tr",
        {},
        ["Word", "Part", "Field", "First use", "Met"].map((title) => h("th", {}, title)),
      ),
      found
        .slice((page - 1) * per, page * per)
        .map((entry) =>
          h(
            "tr",
            {},
            h("td", {}, h("a", { href: open(entry.word) }, entry.word)),
            h("td", {}, entry.part),
            h("td", {}, entry.field),
            h("td", {}, String(entry.year)),
            h("td", {}, entry.band),
          ),
        ),
    ),
    pagination({ page, pages, address: (to) => href("/browse/", { ...asked, page: to }) }),
  );
  return "Browse";
}

function dayPage(world, main) {
  const frame = h("section", { class: "panel-box day big" });
  const show = (day) => {
    const entry = world.ofDay(day);
    fill(
      frame,
      h("small", {}, `${dates.weekday(day)}, ${dates.long(day)}`),
      h("h2", {}, h("a", { href: open(entry.word) }, entry.word)),
      h("p", { class: "soft" }, `${entry.part} · ${entry.uk}`),
      h("p", {}, entry.definitions[0]),
      h("p", { class: "example" }, entry.examples[0]),
    );
  };
  const earlier = Array.from({ length: 6 }, (_, index) => dates.plus(world.today, -index - 1));
  show(world.today);
  add(
    main,
    h("h1", {}, "Word of the day"),
    h(
      "div",
      { class: "columns" },
      h(
        "div",
        {},
        frame,
        h("h2", {}, "The last days"),
        h(
          "ul",
          { class: "earlier" },
          earlier.map((day) =>
            h(
              "li",
              {},
              h("span", { class: "soft" }, dates.brief(day)),
              h("a", { href: open(world.ofDay(day).word) }, world.ofDay(day).word),
            ),
          ),
        ),
      ),
      h(
        "aside",
        {},
        h("h3", {}, "From the archive"),
        datePicker({
          label: "Another day",
          name: "day",
          shown: world.today,
          min: dates.plus(world.today, -365),
          max: world.today,
          format: dates.long,
          onpick: show,
        }),
      ),
    ),
  );
  return "Word of the day";
}

// ---- what the visitor keeps and does ----

function listsPage(world, main) {
  const draw = () =>
    fill(
      main,
      h(
        "div",
        { class: "row" },
        h("h1", {}, "Your word lists"),
        h("button", { class: "end", id: "new-list", onclick: newList }, icon("plus", 16), "New list"),
      ),
      state().lists.map((list, at) =>
        h(
          "section",
          { class: "panel-box" },
          h(
            "div",
            { class: "row" },
            h("h2", {}, list.name),
            h("span", { class: "soft" }, count(list.words.length, "word")),
            at
              ? h(
                  "button",
                  {
                    class: "end",
                    onclick: () => apply("list.delete", { name: list.name }),
                  },
                  "Delete list",
                )
              : null,
          ),
          list.words.map((word) => {
            const entry = world.byWord.get(word);
            return h(
              "div",
              { class: "kept row", "data-word": word },
              h("a", { href: open(word) }, word),
              h("em", {}, entry.part),
              h("span", { class: "soft" }, entry.definitions[0]),
              h(
                "button",
                {
                  class: "end",
                  onclick: () => apply("word.remove", { word, list: list.name }),
                },
                "Remove",
              ),
            );
          }),
        ),
      ),
    );
  onChange(draw);
  draw();
  return "Word lists";
}

function newList() {
  const form = h(
    "form",
    { onsubmit: (event) => event.preventDefault() },
    field({ label: "Name of the list", name: "name" }),
  );
  modal({
    title: "New list",
    body: form,
    actions: [
      { text: "Cancel", act() {} },
      {
        text: "Create",
        primary: true,
        act: () => {
          const values = validate(form, { name: (value) => listProblem(state(), value) });
          if (!values) return false;
          apply("list.create", { name: values.name });
        },
      },
    ],
  });
}

function quizPage(world, main) {
  const number = Number(query().n);
  if (!Number.isInteger(number) || number < 1 || number > QUIZZES) {
    add(
      main,
      h("h1", {}, "Quizzes"),
      h(
        "div",
        { class: "panels" },
        Array.from({ length: QUIZZES }, (_, index) => {
          const best = state()
            .quizzes.filter(({ quiz }) => quiz === index + 1)
            .reduce((most, { right }) => Math.max(most, right), -1);
          return h(
            "section",
            { class: "panel-box" },
            h("small", {}, best < 0 ? "Not taken yet" : `Best: ${best} of 5`),
            h("h2", {}, `Quiz ${index + 1}`),
            h("a", { class: "button", href: href("/quiz/", { n: index + 1 }) }, "Start"),
          );
        }),
      ),
    );
    return "Quizzes";
  }
  const questions = quizOf(world, number),
    given = [];
  const frame = h("section", { class: "panel-box quiz" });
  const draw = () => {
    const at = given.length;
    if (at === questions.length) {
      apply("quiz.finish", { quiz: number, given });
      return fill(
        frame,
        h("small", {}, "Finished"),
        h("h2", { id: "result" }, `${state().quizzes.at(-1).right} of 5 right`),
        questions.map(({ word, right: text }, index) =>
          h("p", {}, given[index] === text ? "✓ " : "✗ ", h("a", { href: open(word) }, word), `: ${text}`),
        ),
        h("a", { class: "button", href: "/quiz/" }, "All quizzes"),
      );
    }
    let chosen = null;
    const on = h(
      "button",
      {
        class: "primary",
        disabled: true,
        onclick: () => {
          given.push(chosen);
          draw();
        },
      },
      at === 4 ? "Finish" : "Next",
    );
    fill(
      frame,
      h("small", {}, `Question ${at + 1} of 5`),
      h("h2", {}, `What does “${questions[at].word}” mean?`),
      questions[at].choices.map((text) =>
        h(
          "label",
          { class: "choice" },
          h("input", {
            type: "radio",
            name: "choice",
            value: text,
            onchange: () => {
              chosen = text;
              on.disabled = false;
            },
          }),
          text,
        ),
      ),
      on,
    );
  };
  draw();
  add(main, h("h1", {}, `Quiz ${number}`), frame);
  return `Quiz ${number}`;
}

function suggestPage(world, main) {
  const form = h(
    "form",
    {
      class: "panel-box",
      novalidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        const values = validate(form, suggestionRules(world));
        if (!values) return;
        apply("suggestion.send", values);
        fill(
          form,
          h("p", { class: "notice", id: "thanks" }, `Thank you. Our editors will look at “${values.word}”.`),
        );
      },
    },
    h(
      "div",
      { class: "form" },
      field({ label: "Word", name: "word" }),
      field({
        label: "Part of speech",
        name: "part",
        options: ["Choose…", ...PARTS],
      }),
      field({ label: "What does it mean?", name: "definition", wide: true }),
      field({ label: "Your email", name: "email", type: "email", wide: true }),
    ),
    h("button", { class: "primary" }, "Send suggestion"),
  );
  add(
    main,
    h("h1", {}, "Suggest a word"),
    h("p", {}, "Is a word missing? Tell us, and our editors will research it."),
    form,
  );
  return "Suggest a word";
}

function settingsPage(world, main) {
  const choice = (name, title, options) =>
    h(
      "fieldset",
      { class: "panel-box" },
      h("legend", {}, title),
      options.map(([value, text]) =>
        h(
          "label",
          { class: "check" },
          h("input", {
            type: "radio",
            name,
            value,
            checked: state()[name] === value,
            onchange: () => {
              apply("settings.choose", { name, value });
              toast("Settings saved.");
            },
          }),
          text,
        ),
      ),
    );
  add(
    main,
    h("h1", {}, "Settings"),
    world.settings.map(([name, options]) => choice(name, SETTINGS[name].title, options)),
  );
  return "Settings";
}
