// The paper's pages.

import { visit } from "/kit/address.js";
import { add, count, fill, grouped, h, icon, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { apply, href, onChange, query, request, site, state } from "/kit/site.js";
import { datePicker, dropdown, infinite, modal, pagination, toast, validate, field } from "/kit/ui.js";
import {
  LETTERS,
  PAPER,
  SECTIONS,
  TOPICS,
  clock,
  commentsOf,
  freshState,
  makeWorld,
  search,
} from "/world.js";
import { photo } from "/pictures.js";
import { EDITIONS, commentRules, letterRules, lettersProblem, transitions } from "/transitions.js";

const PAGES = {
  "": homePage,
  section: sectionPage,
  article: articlePage,
  search: searchPage,
  author: authorPage,
  live: livePage,
  letters: lettersPage,
  saved: savedPage,
  account: accountPage,
};

site({
  name: "news",
  world: makeWorld,
  state: freshState,
  transitions,
  harmless: ["consent"],
  show(world) {
    const main = h("main", {});
    document.body.append(
      header(world),
      main,
      h(
        "footer",
        { class: "bottom" },
        h("b", { class: "masthead" }, PAPER),
        h(
          "nav",
          {},
          SECTIONS.map((name) => h("a", { href: href("/section/", { name }) }, name)),
          h("a", { href: "/letters/" }, "Newsletters"),
        ),
      ),
    );
    const page = PAGES[location.pathname.split("/")[1]] ?? homePage;
    document.title = `${page(world, main) ?? PAPER} | ${PAPER}`;
    consent();
  },
});

/** The wall that asks before anything can be read. */
function consent() {
  if (state().consent) return;
  const choose = (choice) => {
    apply("consent.choose", { choice });
    veil.remove();
  };
  const more = h(
    "div",
    { hidden: true },
    ["Needed for the page to work", "Measuring what is read", "Personal advertising"].map((text, index) =>
      h(
        "label",
        { class: "check" },
        h("input", { type: "checkbox", checked: index === 0, disabled: index === 0 }),
        text,
      ),
    ),
    h("button", { onclick: () => choose("custom") }, "Save choices"),
  );
  const veil = h(
    "div",
    { class: "veil consent" },
    h(
      "div",
      { class: "modal", role: "dialog", "aria-label": "Your privacy" },
      h("header", {}, h("h2", {}, "Your privacy")),
      h(
        "div",
        { class: "modal-body" },
        h(
          "p",
          {},
          `${PAPER} and its partners store information on your device to show the news and to measure what is read.`,
        ),
        more,
      ),
      h(
        "footer",
        {},
        h(
          "button",
          {
            onclick: () => {
              more.hidden = !more.hidden;
            },
          },
          "Options",
        ),
        h("button", { id: "reject", onclick: () => choose("none") }, "Reject all"),
        h("button", { class: "primary", onclick: () => choose("all") }, "Accept all"),
      ),
    ),
  );
  document.body.append(veil);
}

function header(world) {
  const input = h("input", {
    type: "search",
    name: "q",
    value: query().q ?? "",
    placeholder: "Search the news",
    "aria-label": "Search",
  });
  const here = query().name;
  return h(
    "header",
    { class: "top" },
    h(
      "div",
      { class: "line" },
      h("span", {}, `${dates.weekday(world.today)}, ${dates.long(world.today)} · ${state().edition} edition`),
      h(
        "form",
        {
          class: "find",
          onsubmit: (event) => {
            event.preventDefault();
            visit(href("/search/", { q: tidy(input.value) }));
          },
        },
        input,
        h("button", { "aria-label": "Search" }, icon("search", 16)),
      ),
      h(
        "nav",
        {},
        h("a", { href: "/saved/", id: "saved" }, icon("bookmark", 15), "Saved"),
        h("a", { href: "/letters/", id: "letters" }, "Newsletters"),
        h("a", { href: "/account/", id: "account" }, icon("user", 15), "My Post"),
      ),
    ),
    h("a", { class: "masthead", href: "/" }, PAPER),
    h(
      "nav",
      { class: "sections" },
      h("a", { href: "/", "aria-current": location.pathname === "/" ? "page" : null }, "Front page"),
      SECTIONS.map((name) =>
        h("a", { href: href("/section/", { name }), "aria-current": here === name ? "page" : null }, name),
      ),
      h("a", { class: "live-link", href: "/live/", id: "live" }, "● Live"),
    ),
  );
}

const link = (article) => href("/article/", { id: article.id });
const when = (article) => `${dates.short(article.date)}, ${clock(article.minute)}`;
const byline = (article) =>
  h(
    "p",
    { class: "by" },
    h("a", { href: href("/author/", { name: article.author }) }, article.author),
    ` · ${when(article)}`,
  );

function teaser(article, size = "") {
  return h(
    "article",
    { class: `teaser ${size}`, "data-id": article.id },
    h("a", { href: link(article) }, photo(article)),
    h(
      "div",
      {},
      h("small", {}, `${article.section} · ${article.topic}`),
      h("h3", {}, h("a", { href: link(article) }, article.title)),
      h("p", { class: "lead" }, article.lead),
      byline(article),
    ),
  );
}

function mostRead(world) {
  const recent = world.articles
    .slice(0, 60)
    .sort((a, b) => b.views - a.views)
    .slice(0, 6);
  return h(
    "section",
    { class: "side-box" },
    h("h2", {}, "Most read"),
    h(
      "ol",
      { class: "most" },
      recent.map((article) =>
        h(
          "li",
          {},
          h("a", { href: link(article) }, article.title),
          h("small", {}, `${grouped(article.views)} readers`),
        ),
      ),
    ),
  );
}

function pollBox(world) {
  const box = h("section", { class: "side-box poll" });
  const draw = () => {
    const { vote } = state(),
      { question, options } = world.poll,
      all = options.reduce((sum, { votes }) => sum + votes, vote ? 1 : 0);
    if (vote)
      return fill(
        box,
        h("h2", {}, "Poll"),
        h("p", {}, question),
        options.map(({ text, votes }) => {
          const share = Math.round(((votes + (text === vote ? 1 : 0)) / all) * 100);
          return h(
            "div",
            { class: "bar" },
            h("span", {}, text, text === vote ? " (your vote)" : ""),
            h("b", {}, `${share}%`),
            h("i", {}, h("u", { style: { width: `${share}%` } })),
          );
        }),
        h("p", { class: "soft" }, `${grouped(all)} votes`),
      );
    let chosen = null;
    fill(
      box,
      h("h2", {}, "Poll"),
      h("p", {}, question),
      options.map(({ text }) =>
        h(
          "label",
          { class: "check" },
          h("input", {
            type: "radio",
            name: "vote",
            onchange: () => {
              chosen = text;
            },
          }),
          text,
        ),
      ),
      h(
        "button",
        {
          class: "primary",
          id: "vote",
          onclick: () =>
            chosen ? apply("poll.vote", { option: chosen }) : toast("Choose an answer first.", "error"),
        },
        "Vote",
      ),
    );
  };
  onChange(draw);
  draw();
  return box;
}

const liveBox = ({ live }) =>
  h(
    "a",
    { class: "side-box live-box", href: "/live/" },
    h("b", {}, "● LIVE"),
    h("h2", {}, `High water in ${live.town}`),
    h("p", {}, live.entries[0].text),
  );

/** What may stand beside the reports of the front page; the world says in which order. */
const SIDE_BOXES = { live: liveBox, read: mostRead, poll: pollBox };

function homePage(world, main) {
  const [first, ...rest] = world.articles;
  add(
    main,
    h(
      "div",
      { class: "front" },
      h(
        "div",
        {},
        teaser(first, "huge"),
        h(
          "div",
          { class: "two" },
          rest.slice(0, 4).map((one) => teaser(one, "tall")),
        ),
      ),
      h(
        "aside",
        {},
        world.side.map((name) => SIDE_BOXES[name](world)),
      ),
    ),
    SECTIONS.map((name) =>
      h(
        "section",
        { class: "band" },
        h("h2", {}, h("a", { href: href("/section/", { name }) }, name)),
        h(
          "div",
          { class: "four" },
          world.articles
            .filter(({ section }) => section === name)
            .slice(1, 5)
            .map((one) => teaser(one, "tall")),
        ),
      ),
    ),
  );
  return "News";
}

function sectionPage(world, main) {
  const { name, topic = "", page: asked } = query();
  const all = world.articles.filter((one) => one.section === name),
    topics = [...new Set(all.map((one) => one.topic))],
    kept = all.filter((one) => !topic || one.topic === topic);
  const pages = Math.ceil(kept.length / 12),
    page = Math.min(Math.max(1, Number(asked) || 1), pages);
  add(
    main,
    h(
      "div",
      { class: "row" },
      h("h1", {}, name),
      h(
        "nav",
        { class: "topics end" },
        [["", "All"], ...topics.map((one) => [one, one])].map(([value, text]) =>
          h(
            "a",
            {
              href: href("/section/", { name, topic: value }),
              "aria-current": topic === value ? "page" : null,
            },
            text,
          ),
        ),
      ),
    ),
    h("p", { class: "soft", id: "found" }, count(kept.length, "report")),
    kept.slice((page - 1) * 12, page * 12).map((one) => teaser(one, "wide")),
    pagination({ page, pages, address: (to) => href("/section/", { name, topic, page: to }) }),
  );
  return name;
}

function searchPage(world, main) {
  const asked = query(),
    given = { from: asked.from ?? "", to: asked.to ?? "" };
  const found = search(world, asked),
    list = h("div", {});
  const go = (changes) => visit(href("/search/", { ...asked, ...changes }));
  const picker = (name, label) =>
    datePicker({
      label,
      name,
      value: given[name],
      shown: given[name] || world.today,
      min: dates.plus(world.today, -160),
      max: world.today,
      onpick: (day) => go({ [name]: day }),
    });
  add(
    main,
    h("h1", {}, asked.q ? `“${asked.q}”` : "Search"),
    h(
      "div",
      { class: "search-bar" },
      picker("from", "From"),
      picker("to", "Until"),
      h(
        "div",
        { class: "field" },
        h("label", {}, "Section"),
        dropdown({
          id: "section",
          value: asked.section ?? "",
          options: [
            { value: "", text: "All sections" },
            ...SECTIONS.map((value) => ({ value, text: value })),
          ],
          onchange: (section) => go({ section }),
        }),
      ),
      h(
        "div",
        { class: "field" },
        h("label", {}, "Order"),
        dropdown({
          id: "sort",
          value: asked.sort ?? "newest",
          options: [
            ["newest", "Newest first"],
            ["oldest", "Oldest first"],
            ["read", "Most read"],
          ].map(([value, text]) => ({ value, text })),
          onchange: (sort) => go({ sort }),
        }),
      ),
      h("a", { href: href("/search/", { q: asked.q }) }, "Clear"),
    ),
    h("p", { class: "soft", id: "found" }, count(found.length, "report")),
    found.length
      ? list
      : h("p", { class: "notice" }, "Nothing found. Try fewer words or a longer span of days."),
  );
  let at = 0;
  if (found.length)
    queueMicrotask(() => infinite(list, () => found.slice(at, (at += 10)).map((one) => teaser(one, "wide"))));
  return "Search";
}

function authorPage(world, main) {
  const { name } = query(),
    own = world.articles.filter(({ author }) => author === name);
  add(
    main,
    h("h1", {}, name),
    h(
      "p",
      { class: "soft", id: "found" },
      `${count(own.length, "report")}, most of them in ${own[0]?.section ?? "no section"}`,
    ),
    own.map((one) => teaser(one, "wide")),
  );
  return name;
}

// ---- one report ----

function articlePage(world, main) {
  const article = world.byId.get(query().id);
  if (!article) {
    add(main, h("h1", {}, "This report is not here"), h("a", { href: "/" }, "Front page"));
    return "Not found";
  }
  const isSaved = () => state().saved.includes(article.id);
  const save = h("button", {
    id: "save",
    onclick: () => apply(isSaved() ? "saved.remove" : "saved.add", { id: article.id }),
  });
  const mark = () => fill(save, icon("bookmark", 16), isSaved() ? "Saved" : "Save");
  onChange(mark);
  mark();
  let large = false;
  const text = h(
    "div",
    { class: "text" },
    h("p", { class: "standfirst" }, article.lead),
    article.body.map((line) => h("p", {}, line)),
    h("p", { class: "soft" }, `Read by ${grouped(article.views)} people so far.`),
  );
  add(
    main,
    h(
      "div",
      { class: "story" },
      h(
        "article",
        {},
        h(
          "small",
          { class: "kicker" },
          h("a", { href: href("/section/", { name: article.section }) }, article.section),
          ` · ${article.topic}`,
        ),
        h("h1", {}, article.title),
        h(
          "div",
          { class: "row" },
          byline(article),
          h("span", { class: "soft" }, `${article.minutes} minutes to read`),
          h(
            "div",
            { class: "end row" },
            save,
            h(
              "button",
              {
                onclick: () => {
                  large = !large;
                  text.classList.toggle("large", large);
                },
              },
              "A+",
            ),
            h("button", { onclick: () => shareDialog() }, icon("share", 16), "Share"),
          ),
        ),
        photo(article, true),
        text,
        comments(article),
      ),
      h(
        "aside",
        {},
        mostRead(world),
        h(
          "section",
          { class: "side-box" },
          h("h2", {}, `More on ${article.topic.toLowerCase()}`),
          world.articles
            .filter((one) => one.topic === article.topic && one !== article)
            .slice(0, 4)
            .map((one) => h("p", {}, h("a", { href: link(one) }, one.title))),
        ),
      ),
    ),
  );
  return article.title;
}

function shareDialog() {
  modal({
    title: "Share this report",
    body: h(
      "div",
      {},
      h("p", {}, "Copy the address:"),
      h("input", { type: "text", readonly: true, value: location.href }),
    ),
    actions: [{ text: "Done", primary: true, act() {} }],
  });
}

function comments(article) {
  const frame = h("section", { class: "comments", id: "comments" });
  let sort = "newest";
  const draw = () => {
    const mine = state().comments.filter((one) => one.id === article.id),
      others = commentsOf(article).sort((a, b) =>
        sort === "liked" ? b.likes - a.likes : a.minutes - b.minutes,
      );
    const form = h(
      "form",
      {
        novalidate: true,
        onsubmit: (event) => {
          event.preventDefault();
          const values = validate(form, commentRules);
          if (!values) return;
          request("comment", () => apply("comment.post", { id: article.id, ...values })).then(draw, (error) =>
            toast(error.message, "error"),
          );
        },
      },
      h("h3", {}, "Join the conversation"),
      field({ label: "Name", name: "name" }),
      field({ label: "Comment", name: "text", type: "textarea" }),
      h("button", { class: "primary", id: "post" }, "Post comment"),
    );
    fill(
      frame,
      h(
        "div",
        { class: "row" },
        h("h2", {}, count(others.length + mine.length, "comment")),
        h(
          "div",
          { class: "end" },
          dropdown({
            label: "Sort",
            id: "comment-sort",
            value: sort,
            options: [
              { value: "newest", text: "Newest" },
              { value: "liked", text: "Most liked" },
            ],
            onchange: (value) => {
              sort = value;
              draw();
            },
          }),
        ),
      ),
      mine.map((one) =>
        h(
          "article",
          { class: "comment mine" },
          h("b", {}, one.name),
          h("small", {}, " just now"),
          h("p", {}, one.text),
        ),
      ),
      others.map((one) =>
        h(
          "article",
          { class: "comment" },
          h("b", {}, one.author),
          h("small", {}, ` ${one.minutes} minutes ago`),
          h("p", {}, one.text),
          h("small", {}, count(one.likes, "like")),
        ),
      ),
      form,
    );
  };
  draw();
  return frame;
}

// ---- live, letters, account ----

function livePage(world, main) {
  const { entries, title } = world.live;
  let shown = 6;
  const list = h("div", { class: "live" });
  const draw = () =>
    fill(
      list,
      entries
        .slice(0, shown)
        .map((one) =>
          h(
            "article",
            {},
            h("b", {}, clock(one.minute)),
            h(
              "div",
              {},
              h("p", {}, one.text),
              h("p", { class: "soft" }, `Water level: ${one.level.toFixed(2)} m`),
            ),
          ),
        ),
      shown < entries.length
        ? h(
            "button",
            {
              id: "older",
              onclick: () => {
                shown += 6;
                draw();
              },
            },
            "Show older entries",
          )
        : h("p", { class: "soft" }, "This is where our reporting began."),
    );
  draw();
  add(
    main,
    h("h1", {}, title),
    h("p", { class: "soft" }, "Our reporters on the spot. Newest entries first."),
    list,
  );
  return title;
}

function lettersPage(world, main) {
  const form = h(
    "form",
    {
      class: "letters",
      novalidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        const chosen = [...form.querySelectorAll("input[type=checkbox]:checked")].map(({ value }) => value),
          values = validate(form, letterRules),
          problem = lettersProblem(chosen);
        if (problem) return toast(problem, "error");
        if (!values) return;
        apply("letters.subscribe", { email: values.email, chosen });
        fill(
          main,
          h("h1", {}, "Newsletters"),
          h(
            "p",
            { class: "notice", id: "thanks" },
            `Thank you. We will write to ${values.email}: ${chosen.join(", ")}.`,
          ),
        );
      },
    },
    LETTERS.map(([name, text]) =>
      h(
        "label",
        { class: "letter" },
        h("input", { type: "checkbox", value: name }),
        h("div", {}, h("b", {}, name), h("p", { class: "soft" }, text)),
      ),
    ),
    field({ label: "Email", name: "email", type: "email" }),
    h("button", { class: "primary" }, "Subscribe"),
  );
  add(main, h("h1", {}, "Newsletters"), h("p", {}, "Choose what should reach you."), form);
  return "Newsletters";
}

function savedPage(world, main) {
  const draw = () => {
    const list = state().saved.map((id) => world.byId.get(id));
    fill(
      main,
      h("h1", {}, "Saved reports"),
      list.length
        ? list.map((one) => {
            const node = teaser(one, "wide");
            node.append(
              h(
                "button",
                {
                  class: "remove",
                  onclick: () => apply("saved.remove", { id: one.id }),
                },
                "Remove",
              ),
            );
            return node;
          })
        : h("p", { class: "notice" }, "Nothing saved yet."),
    );
  };
  onChange(draw);
  draw();
  return "Saved";
}

function accountPage(world, main) {
  const { follows, edition } = state();
  const given = { follows: new Set(follows), edition };
  add(
    main,
    h("h1", {}, "My Post"),
    h(
      "section",
      { class: "side-box" },
      h("h2", {}, "Topics you follow"),
      h(
        "div",
        { class: "ticks" },
        TOPICS.map((topic) =>
          h(
            "label",
            { class: "check" },
            h("input", {
              type: "checkbox",
              checked: given.follows.has(topic),
              onchange: (event) =>
                event.target.checked ? given.follows.add(topic) : given.follows.delete(topic),
            }),
            topic,
          ),
        ),
      ),
    ),
    h(
      "section",
      { class: "side-box" },
      h("h2", {}, "Edition"),
      EDITIONS.map((name) =>
        h(
          "label",
          { class: "check" },
          h("input", {
            type: "radio",
            name: "edition",
            checked: name === given.edition,
            onchange: () => {
              given.edition = name;
            },
          }),
          name,
        ),
      ),
    ),
    h(
      "button",
      {
        class: "primary",
        id: "keep",
        onclick: () => {
          apply("account.save", { follows: [...given.follows], edition: given.edition });
          toast("Your choices are saved.");
        },
      },
      "Save choices",
    ),
  );
  return "My Post";
}
