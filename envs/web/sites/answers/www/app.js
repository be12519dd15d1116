// The answer engine's pages.

import { visit } from "/kit/address.js";
import { add, count, fill, h, icon, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { apply, href, onChange, query, site, state } from "/kit/site.js";
import { autocomplete, chooser, cookieBanner, download, sortable } from "/kit/ui.js";
import { ask, cell, narrowed, unitOf } from "/engine.js";
import { csv, historyPage, notebookPage, settingsPage } from "/kept.js";
import { tableFile, transitions } from "/transitions.js";
import { DATASETS, NAME, dataset, freshState, makeWorld } from "/world.js";

const PAGES = {
  "": homePage,
  ask: askPage,
  data: dataPage,
  topics: topicsPage,
  notebook: notebookPage,
  history: historyPage,
  settings: settingsPage,
};
const TOPICS = (world) => {
  const [a, b] = world.tables.countries,
    [food, other] = world.tables.foods,
    [place] = world.continents;
  return [
    ["Arithmetic", "∑", ["(18 + 24) * 3^4", "sqrt(2) * 10!", "12.5% of 480"]],
    ["Numbers", "#", ["factor 360360", "gcd 462, 1071", "1994 in roman numerals", "255 in binary"]],
    ["Units", "⇌", ["26.2 miles in kilometres", "350 grams in ounces", "90 mph in m/s"]],
    [
      "Dates",
      "◷",
      [
        `days between March 3, 2021 and ${dates.long(world.today)}`,
        "100 days after today",
        "weekday of 4 July 1976",
      ],
    ],
    ["Statistics", "σ", ["mean of 4, 8, 15, 16, 23, 42", "standard deviation of 2, 4, 4, 4, 5, 5, 7, 9"]],
    [
      "Equations and plots",
      "ƒ",
      ["solve x^2 - 5x + 6 = 0", "solve 3x + 7 = 22", "plot x^3 - 4x from -3 to 3"],
    ],
    [
      "Countries and cities",
      "⚑",
      [`population of ${a.name}`, `compare ${a.name} and ${b.name}`, `countries in ${place} by area`],
    ],
    ["Food", "◒", [food.name, `protein of ${other.name}`, "foods by fibre"]],
    [
      "Minerals and stars",
      "✦",
      [
        world.tables.minerals[0].name,
        "smallest minerals by hardness",
        `distance of ${world.tables.stars[0].name}`,
      ],
    ],
    ["Money", "$", ["loan 240000 at 4.2% for 20 years"]],
  ];
};

site({
  name: "answers",
  world: makeWorld,
  state: freshState,
  transitions,
  harmless: ["cookies", "history", "notebook", "settings"],
  show(world) {
    const main = h("main", {}),
      page = PAGES[location.pathname.split("/")[1]] ?? homePage;
    document.body.append(
      header(),
      main,
      h("footer", { class: "bottom" }, `${NAME} works answers out. It does not look them up on other sites.`),
    );
    document.title = `${page(world, main) ?? NAME} | ${NAME}`;
    cookieBanner({ name: NAME, text: "Cookies keep your history, your notebook and your settings." });
  },
});

function header() {
  const link = (path, id, text) =>
    h("a", { href: path, id, "aria-current": location.pathname === path ? "page" : null }, text);
  const badge = h("b", {});
  const draw = () => {
    badge.textContent = state().notebook.length ? ` ${state().notebook.length}` : "";
  };
  onChange(draw);
  draw();
  return h(
    "header",
    { class: "top" },
    h("a", { class: "logo", href: "/" }, h("i", {}, "∴"), NAME),
    h(
      "nav",
      {},
      link("/topics/", "topics", "Examples"),
      link("/data/", "data", "Data tables"),
      h("a", { href: "/notebook/", id: "notebook" }, "Notebook", badge),
      link("/history/", "history", "History"),
      link("/settings/", "settings", "Settings"),
    ),
  );
}

/** The field for a question, with names the engine knows suggested. */
function asker(world, value = "") {
  const input = h("input", {
    type: "text",
    name: "q",
    value,
    placeholder: "Ask or calculate something",
    "aria-label": "Question",
  });
  const form = h(
    "form",
    {
      class: "asker",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        const q = tidy(input.value);
        if (q) visit(href("/ask/", { q }));
      },
    },
    input,
    h("button", { class: "primary", id: "ask", "aria-label": "Work it out" }, "="),
  );
  autocomplete(input, (text) => {
    const last =
      tidy(text)
        .toLowerCase()
        .match(/(?:^| of | and )([^ ].*)$/)?.[1] ?? "";
    if (last.length < 3) return [];
    const begun = text.slice(0, text.toLowerCase().lastIndexOf(last));
    return [...world.things]
      .filter(([name]) => name.startsWith(last))
      .slice(0, 6)
      .map(([, { id, row }]) => ({
        text: row.name,
        detail: dataset(id).one,
        act: () => {
          input.value = begun + row.name;
          input.focus();
        },
      }));
  });
  return form;
}

const example = (text) => h("a", { class: "example", href: href("/ask/", { q: text }) }, text);

function homePage(world, main) {
  add(
    main,
    h(
      "section",
      { class: "front" },
      h("h1", {}, h("i", {}, "∴"), NAME),
      h("p", {}, "What would you like to know, exactly?"),
      asker(world),
      h(
        "div",
        { class: "palette" },
        TOPICS(world)
          .slice(0, 8)
          .map(([title, sign, [first]]) =>
            h(
              "a",
              { href: href("/ask/", { q: first }) },
              h("i", {}, sign),
              h("span", {}, h("b", {}, title), h("small", {}, first)),
            ),
          ),
      ),
    ),
  );
  return "Answers, worked out";
}

function topicsPage(world, main) {
  add(
    main,
    h("h1", {}, "Examples by topic"),
    asker(world),
    h(
      "div",
      { class: "topics" },
      TOPICS(world).map(([title, sign, list]) =>
        h("section", {}, h("h2", {}, h("i", {}, sign), title), list.map(example)),
      ),
    ),
  );
  return "Examples";
}

// ---- answers ----

function askPage(world, main) {
  const q = tidy(query().q ?? ""),
    { settings, history } = state();
  const found = q ? ask(world, q, settings) : null;
  if (q && history[0] !== q) apply("history.add", { q });
  add(main, asker(world, q));
  if (!found) {
    add(
      main,
      h(
        "section",
        { class: "panel none" },
        h("h2", {}, "Not understood"),
        h("p", {}, q ? `${NAME} cannot work out “${q}”.` : "Nothing was asked."),
        h("p", { class: "soft" }, "Try one of these:"),
        TOPICS(world).map(([, , [first]]) => example(first)),
      ),
    );
    return "Not understood";
  }
  add(
    main,
    h(
      "section",
      { class: "panel heard" },
      h("h2", {}, "Understood as"),
      h("p", { id: "heard" }, found.heard),
      h("span", { class: "kind" }, found.kind),
    ),
    found.panels.map((one) => panelNode(q, one)),
  );
  return q;
}

function panelNode(q, panel) {
  const { id, title, text, table, plot, steps } = panel;
  const saved = () => state().notebook.some((entry) => entry.q === q && entry.id === id);
  const keep = text
    ? h("button", {
        class: "plain keep",
        onclick: () => apply("notebook.toggle", { q, id }),
      })
    : null;
  const draw = () => {
    if (keep)
      fill(keep, icon("bookmark", 16), saved() ? "In notebook" : "Save to notebook").classList.toggle(
        "on",
        saved(),
      );
  };
  onChange(draw);
  draw();
  const drawing = plot ? h("div", { class: "plot", role: "img", "aria-label": title, html: plot }) : null;
  return h(
    "section",
    { class: `panel${id === "result" ? " main" : ""}`, "data-panel": id },
    h("h2", {}, title),
    text ? h("p", { class: "text" }, text) : null,
    drawing,
    steps
      ? h(
          "details",
          {},
          h("summary", {}, "Show the steps"),
          h(
            "ol",
            {},
            steps.map((step) => h("li", {}, step)),
          ),
        )
      : null,
    table
      ? h(
          "table",
          {},
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              table.head.map((name) => h("th", {}, name)),
            ),
          ),
          h(
            "tbody",
            {},
            table.rows.map((row) =>
              h(
                "tr",
                {},
                row.map((one) => h("td", {}, one)),
              ),
            ),
          ),
        )
      : null,
    h(
      "div",
      { class: "panel-foot" },
      keep,
      table?.file
        ? h(
            "button",
            {
              class: "plain csv",
              onclick: () =>
                download(table.file, csv(table.head, table.rows), "text/csv", {
                  page: "ask",
                  choice: { q, panel: id },
                }),
            },
            icon("download", 16),
            "Download CSV",
          )
        : null,
    ),
  );
}

// ---- tables ----

function dataPage(world, main) {
  const asked = query(),
    kind = dataset(asked.set) ?? DATASETS[0],
    { settings } = state();
  const groupColumn = kind.columns.find(({ key }) => key === kind.group),
    groups = [...new Set(world.tables[kind.id].map((row) => row[kind.group]))].sort();
  const counted = kind.columns.filter(({ text }) => !text),
    by = counted.find(({ key }) => key === asked.by) ?? counted[0],
    choice = {
      set: kind.id,
      group: groups.includes(asked.group) ? asked.group : "",
      name: tidy(asked.name ?? "").toLowerCase(),
      by: by.key,
      least: Number.isFinite(Number(asked.least)) ? Number(asked.least) : 0,
    },
    rows = narrowed(world, choice);
  const go = (changes) => visit(href("/data/", { ...asked, set: kind.id, ...changes }));
  const form = h(
    "form",
    {
      class: "narrow",
      onsubmit: (event) => {
        event.preventDefault();
        const values = Object.fromEntries(new FormData(form));
        go({
          name: tidy(values.name),
          least: /^[\d.]+$/.test(values.least.replace(/,/g, "").trim())
            ? values.least.replace(/,/g, "").trim()
            : "",
        });
      },
    },
    h("input", {
      type: "text",
      name: "name",
      value: asked.name ?? "",
      placeholder: "Name contains",
      "aria-label": "Name contains",
    }),
    chooser(
      "Only with",
      "by",
      by.key,
      counted.map(({ key, title }) => [key, title]),
      (key) => go({ by: key, least: "" }),
    ),
    h("input", {
      type: "text",
      name: "least",
      value: asked.least ?? "",
      placeholder: "at least",
      "aria-label": "At least",
    }),
    h("button", { id: "narrow" }, "Apply"),
    h("a", { href: href("/data/", { set: kind.id }) }, "Clear"),
  );
  const head = ["Name", ...kind.columns.map(({ title }) => title)];
  add(
    main,
    h("h1", {}, "Data tables"),
    h(
      "nav",
      { class: "sets" },
      DATASETS.map(({ id }) =>
        h(
          "a",
          { href: href("/data/", { set: id }), "aria-current": id === kind.id ? "page" : null },
          `${id[0].toUpperCase()}${id.slice(1)}`,
          h("small", {}, String(world.tables[id].length)),
        ),
      ),
    ),
    h(
      "div",
      { class: "row tools" },
      chooser(
        groupColumn.title,
        "group",
        choice.group,
        [["", "All"], ...(groups.length > 20 ? groups.slice(0, 20) : groups).map((one) => [one, one])],
        (group) => go({ group }),
      ),
      form,
      h(
        "button",
        {
          class: "end csv",
          onclick: () =>
            download(
              tableFile(kind.id, choice.group),
              csv(
                head,
                rows.map((row) => [row.name, ...kind.columns.map(({ key }) => String(row[key]))]),
              ),
              "text/csv",
              { page: "data", choice },
            ),
        },
        icon("download", 16),
        "Download CSV",
      ),
    ),
    h("p", { class: "soft", id: "found" }, count(rows.length, "row")),
    sortable({
      columns: [
        {
          title: "Name",
          value: (row) => row.name,
          cell: (row) => h("a", { href: href("/ask/", { q: row.name }) }, row.name),
        },
        ...kind.columns.map((column) => ({
          title: [column.title, unitOf(column, settings)].filter(Boolean).join(", "),
          value: (row) => row[column.key],
          // The heading names the unit.
          cell: (row) =>
            column.text
              ? cell(column, row, settings)
              : cell(column, row, settings).replace(` ${unitOf(column, settings)}`, ""),
          number: !column.text,
        })),
      ],
      rows,
    }),
  );
  return `${kind.id} table`;
}
