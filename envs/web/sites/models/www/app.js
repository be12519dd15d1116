// The model hub's pages.

import { visit } from "/kit/address.js";
import { add, count, fill, grouped, h, icon, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { draws } from "/kit/random.js";
import { apply, href, onChange, query, site, state } from "/kit/site.js";
import {
  autocomplete,
  chooser,
  cookieBanner,
  download,
  facts,
  field,
  leaf,
  listsDialog,
  modal,
  pagination,
  radios,
  sortable,
  ticks,
  toast,
  validate,
} from "/kit/ui.js";
import {
  BENCHMARKS,
  LANGUAGES,
  LIBRARIES,
  LICENSES,
  NAME,
  PURPOSES,
  TASKS,
  bytesTold,
  configOf,
  filesOf,
  freshState,
  makeWorld,
  rowsOf,
  search,
  sizeTold,
  taskOf,
} from "/world.js";
import {
  KINDS,
  accessRules,
  discussionRules,
  discussions,
  isOpen,
  replyRules,
  transitions,
} from "/transitions.js";

const PAGES = {
  "": homePage,
  models: listPage,
  datasets: listPage,
  model: itemPage,
  dataset: itemPage,
  discussion: discussionPage,
  board: boardPage,
  mine: minePage,
};
const PER_PAGE = 14;

site({
  name: "models",
  world: makeWorld,
  state: freshState,
  transitions,
  harmless: ["cookies", "recent", "collections"],
  show(world) {
    const main = h("main", {});
    document.body.append(
      header(world),
      main,
      h(
        "footer",
        { class: "bottom" },
        h("b", {}, NAME),
        ` · ${grouped(world.models.length)} models and ${world.sets.length} data sets, each with its card`,
      ),
    );
    const page = PAGES[location.pathname.split("/")[1]] ?? homePage;
    document.title = `${page(world, main) ?? NAME} · ${NAME}`;
    cookieBanner({
      name: NAME,
      text: "Cookies keep your likes and collections. Figures of use are counted without names.",
    });
  },
});

const link = (item, tab = "") => href(item.kind === "model" ? "/model/" : "/dataset/", { id: item.id, tab });

/** The emblem of a maker: two quarter rounds in colours of the name. */
function emblem(maker, size = 22) {
  const hue = draws(`maker/${maker}`).below(360),
    node = h("span", { class: "emblem", "aria-hidden": "true" });
  node.innerHTML = `<svg width="${size}" height="${size}" viewBox="0 0 24 24"><rect width="24" height="24" rx="6" fill="hsl(${hue} 60% 90%)"/><path d="M4 20V8a12 12 0 0 1 12 12z" fill="hsl(${hue} 65% 45%)"/><path d="M20 4v9a9 9 0 0 1-9-9z" fill="hsl(${(hue + 50) % 360} 70% 58%)"/></svg>`;
  return node;
}
const tag = (task) => h("span", { class: "tag", style: { "--hue": taskOf(task).hue } }, task);

function header(world) {
  const input = h("input", {
    type: "search",
    name: "q",
    value: query().q ?? "",
    placeholder: "Search models and data sets",
    "aria-label": "Search",
  });
  const form = h(
    "form",
    {
      class: "find",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        visit(href(location.pathname === "/datasets/" ? "/datasets/" : "/models/", { q: tidy(input.value) }));
      },
    },
    icon("search", 17),
    input,
  );
  autocomplete(input, (text) => {
    const wanted = tidy(text).toLowerCase();
    return wanted.length < 2
      ? []
      : [...world.byId.values()]
          .filter(({ id }) => id.toLowerCase().includes(wanted))
          .slice(0, 7)
          .map((item) => ({
            text: item.id,
            detail: item.kind === "model" ? "model" : "data set",
            act: () => visit(link(item)),
          }));
  });
  const own = (path, id, text) =>
    h("a", { href: path, id, "aria-current": location.pathname === path ? "page" : null }, text);
  return h(
    "header",
    { class: "top" },
    h("a", {
      class: "logo",
      href: "/",
      html: '<svg width="26" height="28" viewBox="0 0 26 28"><path d="M3 2h20v24l-10-7-10 7z" fill="#ff5d8f"/><path d="M8 8h10M8 13h6" stroke="#fff" stroke-width="2.500"/></svg><span>Shelfmark</span>',
    }),
    form,
    h(
      "nav",
      {},
      own("/models/", "models", "Models"),
      own("/datasets/", "datasets", "Data sets"),
      own("/board/", "board", "Leaderboard"),
      own("/mine/", "mine", "My shelf"),
    ),
  );
}

const card = (item) =>
  h(
    "article",
    { class: "card", "data-id": item.id },
    h(
      "h3",
      {},
      emblem(item.maker),
      h("a", { href: link(item) }, h("span", {}, `${item.maker}/`), h("b", {}, item.name)),
    ),
    h(
      "p",
      { class: "figures" },
      tag(item.task),
      h("span", {}, item.kind === "model" ? sizeTold(item.millions) : `${grouped(item.rows)} rows`),
      h("span", {}, `Updated ${dates.short(item.updated)}`),
      h("span", {}, "↓ ", grouped(item.downloads)),
      h("span", {}, "♥ ", grouped(item.likes)),
      item.gated ? icon("lock", 14) : null,
    ),
  );

function homePage(world, main) {
  add(
    main,
    h(
      "section",
      { class: "hero" },
      h(
        "div",
        {},
        h("h1", {}, "Take a model off the shelf"),
        h("p", {}, "Every one with a card that says what it was made from and what it cannot do."),
        h(
          "div",
          { class: "row" },
          h("a", { class: "button primary", href: "/models/" }, "Browse models"),
          h("a", { class: "button", href: "/datasets/" }, "Browse data sets"),
        ),
      ),
      h(
        "div",
        { class: "tasks" },
        TASKS.map(({ name, hue, unit }) =>
          h(
            "a",
            { href: href("/models/", { task: name }), style: { "--hue": hue } },
            h("b", {}, name),
            h("small", {}, unit),
          ),
        ),
      ),
    ),
    h(
      "div",
      { class: "halves" },
      h("section", {}, h("h2", {}, "Most downloaded models"), search(world, {}).slice(0, 6).map(card)),
      h(
        "section",
        {},
        h("h2", {}, "Best loved data sets"),
        search(world, { kind: "sets", sort: "likes" }).slice(0, 6).map(card),
      ),
    ),
  );
  return "Models and data";
}

function listPage(world, main) {
  const asked = query(),
    sets = location.pathname === "/datasets/",
    path = sets ? "/datasets/" : "/models/",
    licenses = asked.licenses ? asked.licenses.split("|") : [];
  const found = search(world, {
      ...asked,
      kind: sets ? "sets" : "models",
      licenses,
      max: sets ? 0 : Number(asked.max) || 0,
      library: sets ? "" : asked.library,
    }),
    { shown, page, pages } = leaf(found, asked.page, PER_PAGE);
  const go = (changes) => visit(href(path, { ...asked, page: "", ...changes })),
    any = (list) => [{ value: "", text: "Any" }, ...list.map((value) => ({ value, text: value }))];
  add(
    main,
    h(
      "div",
      { class: "columns" },
      h(
        "aside",
        { class: "filters" },
        radios({
          title: "Task",
          name: "task",
          value: asked.task ?? "",
          options: any(TASKS.map(({ name }) => name)),
          onchange: (task) => go({ task }),
        }),
        sets
          ? null
          : radios({
              title: "Parameters",
              name: "max",
              value: asked.max ?? "",
              options: [
                { value: "", text: "Any" },
                ...[
                  ["400", "Up to 400M"],
                  ["3000", "Up to 3B"],
                  ["13000", "Up to 13B"],
                ].map(([value, text]) => ({ value, text })),
              ],
              onchange: (max) => go({ max }),
            }),
        ticks({
          title: "Licence",
          name: "licenses",
          chosen: licenses,
          options: LICENSES,
          onchange: (values) => go({ licenses: values.join("|") }),
        }),
        radios({
          title: "Language",
          name: "language",
          value: asked.language ?? "",
          options: any(LANGUAGES),
          onchange: (language) => go({ language }),
        }),
        sets
          ? null
          : radios({
              title: "Library",
              name: "library",
              value: asked.library ?? "",
              options: any(LIBRARIES),
              onchange: (library) => go({ library }),
            }),
      ),
      h(
        "div",
        {},
        h(
          "div",
          { class: "row list-head" },
          h("h1", {}, sets ? "Data sets" : "Models"),
          h("span", { class: "soft", id: "found" }, grouped(found.length)),
          h(
            "div",
            { class: "end" },
            chooser(
              "Sort",
              "sort",
              asked.sort ?? "downloads",
              [
                ["downloads", "Most downloads"],
                ["likes", "Most likes"],
                ["updated", "Recently updated"],
                ["small", "Smallest first"],
              ],
              (sort) => go({ sort }),
            ),
          ),
        ),
        h("div", { class: "grid" }, shown.map(card)),
        found.length ? null : h("p", { class: "notice" }, "Nothing fits. Take a filter away."),
        pagination({ page, pages, address: (to) => href(path, { ...asked, page: to }) }),
      ),
    ),
  );
  return sets ? "Data sets" : "Models";
}

// ---- one model or data set ----

function itemPage(world, main) {
  const asked = query(),
    item = world.byId.get(asked.id);
  if (!item) {
    add(main, h("h1", {}, "Nothing stands here"));
    return "Not found";
  }
  const list =
    item.kind === "model"
      ? [
          ["", "Model card", cardTab],
          ["files", "Files", filesTab],
          ["discussions", "Discussions", discussionsTab],
        ]
      : [
          ["", "Data set card", setTab],
          ["viewer", "Viewer", viewerTab],
          ["files", "Files", filesTab],
        ];
  const [open, , show] = list.find(([id]) => id === (asked.tab ?? "")) ?? list[0];
  add(
    main,
    itemHead(
      item,
      list.map(([id, title]) => [id, title, id === open]),
    ),
    show(item, asked, world),
  );
  return item.id;
}

function itemHead(item, list) {
  const like = h("button", {
    id: "like",
    onclick: () => {
      apply("like.toggle", { id: item.id });
      draw();
    },
  });
  const draw = () => {
    const on = state().likes.includes(item.id);
    fill(
      like,
      icon("heart", 16),
      `${on ? "Liked" : "Like"} ${grouped(item.likes + (on ? 1 : 0))}`,
    ).classList.toggle("on", on);
  };
  draw();
  return h(
    "div",
    { class: "item-head" },
    h(
      "div",
      { class: "row" },
      emblem(item.maker, 40),
      h("h1", {}, h("span", { class: "soft" }, `${item.maker}/`), item.name),
      h(
        "div",
        { class: "end row" },
        like,
        h(
          "button",
          { id: "collect", onclick: () => collectDialog(item) },
          icon("bookmark", 16),
          "Add to collection",
        ),
      ),
    ),
    h(
      "p",
      { class: "row wrap tags" },
      tag(item.task),
      [item.library, item.license, ...item.languages]
        .filter(Boolean)
        .map((one) => h("span", { class: "plain-tag" }, one)),
      item.gated ? h("span", { class: "plain-tag gated" }, "Access on request") : null,
    ),
    h(
      "nav",
      { class: "item-tabs" },
      list.map(([id, title, open]) =>
        h(
          "a",
          { href: link(item, id), id: `tab-${id || "card"}`, "aria-current": open ? "page" : null },
          title,
        ),
      ),
    ),
  );
}

function side(item, rows) {
  const bars = draws(`bars/${item.id}`),
    points = Array.from({ length: 30 }, (_, at) => `${at * 9} ${60 - bars.between(8, 52)}`).join("L"),
    chart = h("div", { class: "spark", role: "img", "aria-label": "Downloads" });
  chart.innerHTML = `<svg viewBox="0 0 261 62"><path d="M${points}L261 62L0 62z" fill="#ffe1eb"/><path d="M${points}" fill="none" stroke="#ff5d8f" stroke-width="2"/></svg>`;
  return h(
    "aside",
    { class: "side" },
    h("small", { class: "soft" }, "Downloads last month"),
    h("b", { class: "big", id: "downloads" }, grouped(item.downloads)),
    chart,
    facts(rows),
  );
}

function cardTab(model, asked, world) {
  const set = world.byId.get(model.trained);
  return h(
    "div",
    { class: "card-page" },
    h(
      "article",
      { class: "prose" },
      h("h2", {}, model.name),
      h(
        "p",
        {},
        `${model.name} is a model for ${model.task.toLowerCase()} with ${grouped(model.millions)} million parameters, made by ${model.maker}. It reads up to ${grouped(model.context)} ${taskOf(model.task).unit} at once.`,
      ),
      h("h2", {}, "How to use it"),
      h("pre", {}, `use ${model.library.toLowerCase()}\nmodel = load("${model.id}")\nmodel.run(input)`),
      h("h2", {}, "Training"),
      h(
        "p",
        {},
        set
          ? [
              "It was trained on ",
              h("a", { href: link(set), id: "trained" }, set.id),
              ` for ${grouped(model.hours)} hours.`,
            ]
          : `It was trained on data of its maker for ${grouped(model.hours)} hours.`,
      ),
      h("h2", {}, "Results"),
      h(
        "table",
        { class: "scores" },
        h("tr", {}, h("th", {}, "Benchmark"), h("th", { class: "number" }, "Score")),
        BENCHMARKS.map((one) =>
          h("tr", {}, h("td", {}, one), h("td", { class: "number" }, model.scores[one].toFixed(1))),
        ),
        h("tr", {}, h("th", {}, "Average"), h("th", { class: "number" }, model.average.toFixed(1))),
      ),
      h("h2", {}, "Limits"),
      h("p", {}, `It was not tested in languages other than ${model.languages.join(", ")}.`),
    ),
    side(model, [
      ["Parameters", sizeTold(model.millions)],
      ["Library", model.library],
      ["Licence", model.license],
      ["Languages", model.languages.join(", ")],
      ["Updated", dates.long(model.updated)],
    ]),
  );
}

function setTab(set, asked, world) {
  const users = world.models.filter(({ trained }) => trained === set.id);
  return h(
    "div",
    { class: "card-page" },
    h(
      "article",
      { class: "prose" },
      h("h2", {}, set.name),
      h("p", {}, `${grouped(set.rows)} rows for ${set.task.toLowerCase()}, gathered by ${set.maker}.`),
      h("h2", {}, "First rows"),
      rowTable(rowsOf(set).slice(0, 5)),
      h("h2", {}, "Models trained on it"),
      users.length
        ? h(
            "ul",
            { class: "users" },
            users.map((model) => h("li", {}, h("a", { href: link(model) }, model.id))),
          )
        : h("p", { class: "soft" }, "None on this shelf."),
    ),
    side(set, [
      ["Rows", grouped(set.rows)],
      ["Size", `${set.size.toFixed(1)} GB`],
      ["Licence", set.license],
      ["Languages", set.languages.join(", ")],
      ["Updated", dates.long(set.updated)],
    ]),
  );
}

const rowTable = (rows) =>
  h(
    "table",
    { class: "rows" },
    h(
      "tr",
      {},
      ["row", "text", "label", "split", "score"].map((name) => h("th", {}, name)),
    ),
    rows.map((row) =>
      h(
        "tr",
        {},
        h("td", { class: "soft" }, String(row.row)),
        h("td", {}, row.text),
        h("td", {}, row.label),
        h("td", {}, row.split),
        h("td", { class: "number" }, String(row.score)),
      ),
    ),
  );

function viewerTab(set, asked) {
  const all = rowsOf(set),
    labels = [...new Set(all.map(({ label }) => label))].sort(),
    least = Number(asked.least) || 0;
  const found = all.filter(
      (row) =>
        (!asked.label || row.label === asked.label) &&
        (!asked.split || row.split === asked.split) &&
        row.score >= least &&
        row.text.toLowerCase().includes(tidy(asked.text ?? "").toLowerCase()),
    ),
    { shown, page, pages } = leaf(found, asked.page, 15);
  const go = (changes) => visit(href("/dataset/", { ...asked, page: "", ...changes }));
  const form = h(
    "form",
    {
      class: "row",
      onsubmit: (event) => {
        event.preventDefault();
        const values = Object.fromEntries(new FormData(form));
        go({ text: tidy(values.text), least: /^\d+$/.test(values.least.trim()) ? values.least.trim() : "" });
      },
    },
    h("input", {
      type: "text",
      name: "text",
      value: asked.text ?? "",
      placeholder: "Text contains",
      "aria-label": "Text contains",
    }),
    h("input", {
      type: "text",
      name: "least",
      value: asked.least ?? "",
      placeholder: "Score at least",
      "aria-label": "Score at least",
    }),
    h("button", {}, "Filter"),
  );
  return h(
    "div",
    { class: "viewer" },
    h(
      "div",
      { class: "row tools" },
      chooser(
        "Label",
        "label",
        asked.label ?? "",
        [["", "Any"], ...labels.map((one) => [one, one])],
        (label) => go({ label }),
      ),
      chooser(
        "Split",
        "split",
        asked.split ?? "",
        [["", "Any"], ...["train", "validation", "test"].map((one) => [one, one])],
        (split) => go({ split }),
      ),
      form,
      h("b", { class: "end", id: "rows" }, count(found.length, "row")),
    ),
    rowTable(shown),
    pagination({ page, pages, address: (to) => href("/dataset/", { ...asked, page: to }) }),
  );
}

function filesTab(item) {
  const open = () => isOpen(state(), item);
  const get = (file) => {
    if (open())
      download(
        file.name,
        file.name === "config.json" ? JSON.stringify(configOf(item), null, 2) : `${item.id} ${file.name}`,
        "text/plain",
        { id: item.id },
      );
    else toast("Ask for access first.", "error");
  };
  const looked = h("div", {}),
    files = filesOf(item),
    total = files.reduce((sum, { size }) => sum + size, 0);
  const look = (file) =>
    fill(
      looked,
      h(
        "section",
        { class: "look" },
        h("h2", {}, file.name),
        h(
          "pre",
          {},
          file.name === "config.json"
            ? JSON.stringify(configOf(item), null, 2)
            : file.name === "schema.json"
              ? '{ "text": "string", "label": "string", "split": "string", "score": "integer" }'
              : `${item.name}\n\nSee the card.`,
        ),
      ),
    );
  const gate =
    item.gated && !open()
      ? h(
          "section",
          { class: "gate" },
          icon("lock", 26),
          h(
            "div",
            {},
            h("h2", {}, "You need to share who you are to get this model"),
            h(
              "p",
              { class: "soft" },
              `${item.maker} asks for your name and what you want it for. Access is given at once.`,
            ),
          ),
          h(
            "button",
            { class: "primary end", id: "ask-access", onclick: () => accessDialog(item) },
            "Ask for access",
          ),
        )
      : null;
  return h(
    "div",
    {},
    gate,
    h(
      "table",
      { class: "files" },
      h(
        "tr",
        {},
        h("th", {}, count(files.length, "file")),
        h("th", { class: "number" }, bytesTold(total)),
        h("th", {}, ""),
        h("th", {}, ""),
        h("th", {}, ""),
      ),
      files.map((file) =>
        h(
          "tr",
          { "data-file": file.name },
          h(
            "td",
            {},
            icon("file", 15),
            " ",
            /json|md/.test(file.name)
              ? h("button", { class: "plain link open", onclick: () => look(file) }, file.name)
              : h("b", {}, file.name),
          ),
          h("td", { class: "number size" }, bytesTold(file.size)),
          h(
            "td",
            {},
            h(
              "button",
              { class: "get", "aria-label": `Download ${file.name}`, onclick: () => get(file) },
              icon("download", 15),
            ),
          ),
          h("td", { class: "soft" }, file.message),
          h("td", { class: "soft number" }, dates.short(file.day)),
        ),
      ),
    ),
    looked,
  );
}

function accessDialog(item) {
  const form = h(
    "form",
    { onsubmit: (event) => event.preventDefault() },
    h(
      "div",
      { class: "form" },
      field({ label: "Full name", name: "name" }),
      field({ label: "Affiliation", name: "affiliation" }),
      field({ label: "What for?", name: "purpose", options: PURPOSES, wide: true }),
    ),
    h(
      "div",
      { class: "field" },
      h(
        "label",
        { class: "check" },
        h("input", { type: "checkbox", name: "agreed" }),
        `I accept the licence ${item.license}`,
      ),
      h("small", { class: "error", role: "alert" }),
    ),
  );
  modal({
    title: `Access to ${item.name}`,
    body: form,
    actions: [
      { text: "Cancel", act() {} },
      {
        text: "Send",
        primary: true,
        act: () => {
          const values = validate(form, accessRules);
          if (!values) return false;
          apply("access.ask", { id: item.id, ...values });
          location.reload();
        },
      },
    ],
  });
}

function collectDialog(item) {
  listsDialog({
    title: "Add to a collection",
    word: "collection",
    key: "collections",
    members: "items",
    id: item.id,
  });
}

// ---- discussions, leaderboard, shelf ----

function discussionsTab(model, asked) {
  const list = discussions(state(), model).filter(({ open }) => (asked.shown !== "closed") === open);
  return h(
    "div",
    {},
    h(
      "div",
      { class: "row" },
      chooser(
        "Shown",
        "shown",
        asked.shown ?? "",
        [
          ["", "Open"],
          ["closed", "Closed"],
        ],
        (shown) => visit(href("/model/", { ...asked, shown })),
      ),
      h(
        "button",
        { class: "primary end", id: "new-discussion", onclick: () => discussDialog(model) },
        "New discussion",
      ),
    ),
    h(
      "div",
      { class: "threads" },
      list.map((one) =>
        h(
          "article",
          { "data-number": one.number },
          h("b", {}, `#${one.number}`),
          h(
            "div",
            {},
            h("a", { href: href("/discussion/", { id: model.id, n: one.number }) }, one.title),
            h("small", { class: "soft" }, `${one.author} · ${dates.short(one.day)}`),
          ),
          h("span", { class: "end soft" }, count(one.replies.length, "reply", "replies")),
        ),
      ),
      list.length ? null : h("p", { class: "notice" }, "None."),
    ),
  );
}

function discussDialog(model) {
  const form = h(
    "form",
    { onsubmit: (event) => event.preventDefault() },
    field({ label: "Title", name: "title" }),
    field({ label: "Text", name: "text", type: "textarea" }),
    field({ label: "Kind", name: "kind", options: KINDS }),
  );
  modal({
    title: "New discussion",
    body: form,
    actions: [
      { text: "Cancel", act() {} },
      {
        text: "Post",
        primary: true,
        act: () => {
          const values = validate(form, discussionRules);
          if (!values) return false;
          apply("discussion.begin", { id: model.id, ...values });
          visit(href("/discussion/", { id: model.id, n: state().discussions[0].number }));
        },
      },
    ],
  });
}

function discussionPage(world, main) {
  const asked = query(),
    model = world.byId.get(asked.id),
    one = model && discussions(state(), model).find(({ number }) => number === Number(asked.n));
  if (!one) {
    add(main, h("h1", {}, "There is no such discussion"));
    return "Not found";
  }
  const frame = h("div", { class: "thread" });
  const draw = () => {
    const replies = [
      ...one.replies,
      ...state().replies.filter(({ id, number }) => id === model.id && number === one.number),
    ];
    const form = h(
      "form",
      {
        class: "reply",
        novalidate: true,
        onsubmit: (event) => {
          event.preventDefault();
          const values = validate(form, replyRules);
          if (!values) return;
          apply("reply.send", { id: model.id, number: one.number, ...values });
          draw();
        },
      },
      field({ label: "Your reply", name: "reply", type: "textarea" }),
      h("button", { class: "primary", id: "send" }, "Reply"),
    );
    fill(
      frame,
      h("h2", {}, one.title, h("span", { class: "soft" }, ` #${one.number}`)),
      one.text
        ? h(
            "article",
            { class: "post" },
            emblem("you", 30),
            h("div", {}, h("b", {}, "you"), h("p", {}, one.text)),
          )
        : null,
      replies.map((reply) =>
        h(
          "article",
          { class: "post" },
          emblem(reply.author, 30),
          h("div", {}, h("b", {}, reply.author), h("p", {}, reply.text)),
        ),
      ),
      form,
    );
  };
  draw();
  add(
    main,
    itemHead(model, [
      ["", "Model card", false],
      ["files", "Files", false],
      ["discussions", "Discussions", true],
    ]),
    frame,
  );
  return one.title;
}

function boardPage(world, main) {
  const asked = query(),
    go = (changes) => visit(href("/board/", { ...asked, ...changes })),
    max = Number(asked.max) || 0;
  const rows = world.models.filter(
    (model) =>
      (!asked.task || model.task === asked.task) &&
      (!max || model.millions <= max) &&
      (!asked.license || model.license === asked.license),
  );
  add(
    main,
    h("h1", {}, "Leaderboard"),
    h("p", { class: "soft" }, "Press a heading to sort by it; press again to turn the order round."),
    h(
      "div",
      { class: "row tools" },
      chooser(
        "Task",
        "task",
        asked.task ?? "",
        [["", "All"], ...TASKS.map(({ name }) => [name, name])],
        (task) => go({ task }),
      ),
      chooser(
        "Parameters",
        "max",
        asked.max ?? "",
        [
          ["", "Any"],
          ["400", "Up to 400M"],
          ["3000", "Up to 3B"],
          ["13000", "Up to 13B"],
        ],
        (value) => go({ max: value }),
      ),
      chooser(
        "Licence",
        "license",
        asked.license ?? "",
        [["", "Any"], ...LICENSES.map((one) => [one, one])],
        (license) => go({ license }),
      ),
      h("span", { class: "end soft", id: "found" }, count(rows.length, "model")),
    ),
    sortable({
      columns: [
        {
          title: "Model",
          value: (model) => model.name,
          cell: (model) => h("a", { href: link(model) }, model.name),
        },
        {
          title: "Parameters",
          value: (model) => model.millions,
          cell: (model) => sizeTold(model.millions),
          number: true,
        },
        {
          title: "Average",
          value: (model) => model.average,
          cell: (model) => h("b", {}, model.average.toFixed(1)),
          number: true,
        },
        ...BENCHMARKS.map((one) => ({
          title: one,
          value: (model) => model.scores[one],
          cell: (model) => model.scores[one].toFixed(1),
          number: true,
        })),
      ],
      rows,
    }),
  );
  return "Leaderboard";
}

function minePage(world, main) {
  const draw = () => {
    const { likes, collections } = state();
    fill(
      main,
      h("h1", {}, "My shelf"),
      h(
        "div",
        { class: "halves" },
        h(
          "section",
          {},
          h("h2", {}, "Collections"),
          collections.length
            ? collections.map(({ name, items }) =>
                h(
                  "article",
                  { class: "shelf" },
                  h("h3", {}, name),
                  items.map((id) =>
                    h(
                      "p",
                      { class: "row" },
                      h("a", { href: link(world.byId.get(id)) }, id),
                      h(
                        "button",
                        {
                          class: "plain end",
                          "aria-label": `Take ${id} off`,
                          onclick: () => {
                            apply("collection.take", { name, id });
                          },
                        },
                        icon("close", 16),
                      ),
                    ),
                  ),
                ),
              )
            : h("p", { class: "notice" }, "No collection yet."),
        ),
        h(
          "section",
          {},
          h("h2", {}, "Liked"),
          likes.length
            ? likes.map((id) => card(world.byId.get(id)))
            : h("p", { class: "notice" }, "Nothing liked yet."),
        ),
      ),
    );
  };
  onChange(draw);
  draw();
  return "My shelf";
}
