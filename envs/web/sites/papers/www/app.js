// The archive's pages.

import { visit } from "/kit/address.js";
import { $, add, count, fill, h, icon, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { apply, href, onChange, query, request, site, state } from "/kit/site.js";
import {
  autocomplete,
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
  ARCHIVE,
  SUBJECTS,
  bibtexKey,
  comments,
  freshState,
  makeWorld,
  papersBy,
  search,
  subject,
} from "/world.js";
import {
  ERRORS,
  OFTEN,
  alertRules,
  entryRules,
  reportRules,
  subjectsProblem,
  transitions,
} from "/transitions.js";

const PAGES = {
  "": homePage,
  search: searchPage,
  advanced: advancedPage,
  list: listPage,
  abs: paperPage,
  pdf: pdfPage,
  sheet: sheetPage,
  author: authorPage,
  library: libraryPage,
  alerts: alertsPage,
  about: aboutPage,
};
const FIELDS = [
  ["all", "All fields"],
  ["title", "Title"],
  ["author", "Author"],
  ["abstract", "Abstract"],
  ["id", "Identifier"],
].map(([value, text]) => ({ value, text }));
const ORDERS = [
  ["newest", "Newest first"],
  ["oldest", "Oldest first"],
  ["cited", "Most cited"],
].map(([value, text]) => ({ value, text }));

site({
  name: "papers",
  world: makeWorld,
  state: freshState,
  transitions,
  harmless: ["list"],
  show(world) {
    const name = location.pathname.split("/")[1];
    const page = PAGES[name] ?? homePage;
    const main = h("main", {});
    // A paper itself has nothing of the archive around it.
    if (name === "pdf" || name === "sheet") document.body.append(main);
    else document.body.append(header(world), main, footer());
    document.title = `${page(world, main) ?? ARCHIVE} | ${ARCHIVE}`;
  },
});

// ---- around every page ----

function header(world) {
  const { q = "", field: inField = "all" } = query();
  const input = h("input", {
    type: "search",
    name: "q",
    value: q,
    placeholder: "Search…",
    "aria-label": "Search term",
  });
  const select = h(
    "select",
    { name: "field", "aria-label": "Field" },
    FIELDS.map(({ value, text }) => h("option", { value, selected: value === inField }, text)),
  );
  const form = h(
    "form",
    {
      class: "quick",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        visit(href("/search/", { q: tidy(input.value), field: select.value }));
      },
    },
    input,
    select,
    h("button", { class: "primary", id: "search" }, "Search"),
  );
  autocomplete(input, (text) => {
    const wanted = tidy(text).toLowerCase();
    if (wanted.length < 3) return [];
    const names = world.authors
      .filter((author) => author.toLowerCase().includes(wanted))
      .slice(0, 3)
      .map((author) => ({
        text: author,
        detail: "Author",
        act: () => visit(href("/author/", { name: author })),
      }));
    const titles = world.papers
      .filter(({ title }) => title.toLowerCase().includes(wanted))
      .slice(0, 5)
      .map((paper) => ({
        text: paper.title,
        detail: paper.id,
        act: () => visit(href("/abs/", { id: paper.id })),
      }));
    return [...names, ...titles];
  });
  const badge = h("b", {});
  const refresh = () => {
    badge.textContent = String(state().list.length);
  };
  onChange(refresh);
  refresh();
  return h(
    "header",
    { class: "top" },
    h(
      "div",
      { class: "strip" },
      h(
        "a",
        { class: "mark", href: "/" },
        h("i", {}, "Q"),
        ARCHIVE,
        h("small", {}, "open archive of preprints"),
      ),
      form,
    ),
    h(
      "nav",
      { class: "links" },
      h("a", { href: "/" }, "Subjects"),
      h("a", { href: "/advanced/", id: "advanced" }, "Advanced search"),
      h("a", { href: "/library/", id: "library" }, icon("bookmark", 15), "Reading list ", badge),
      h("a", { href: "/alerts/", id: "alerts" }, icon("info", 15), "Email alerts"),
      h("a", { href: "/about/" }, "About"),
      h("span", { class: "end" }, dates.british(world.today)),
    ),
  );
}

const footer = () =>
  h(
    "footer",
    { class: "bottom" },
    h(
      "p",
      {},
      `${ARCHIVE} is a free service. Papers are not peer reviewed; what they say is their authors' own.`,
    ),
    h(
      "p",
      {},
      h("a", { href: "/about/" }, "About"),
      " · ",
      h("a", { href: "/advanced/" }, "Search help"),
      " · ",
      h("a", { href: "/alerts/" }, "Alerts"),
    ),
  );

const authorLinks = (paper) =>
  paper.authors.flatMap((author, index) => [
    index ? ", " : null,
    h("a", { href: href("/author/", { name: author }) }, author),
  ]);
const subjectText = (code) => `${subject(code).name} (${code})`;
const subjectLine = (paper) => [
  h("b", {}, subjectText(paper.subject)),
  ...paper.others.map((code) => `; ${subjectText(code)}`),
];

/** A paper in a list. */
function entry(paper) {
  const full = h("p", { class: "abstract" }, `${paper.abstract.slice(0, 190).replace(/\s+\S*$/, "")}… `);
  const more = h("button", { class: "plain link", onclick: () => fill(full, paper.abstract) }, "More");
  full.append(more);
  return h(
    "article",
    { class: "entry", "data-id": paper.id },
    h(
      "p",
      { class: "ids" },
      h("a", { href: href("/abs/", { id: paper.id }) }, `${ARCHIVE}:${paper.id}`),
      " [",
      h("a", { href: href("/pdf/", { id: paper.id }), target: "_blank" }, "pdf"),
      "]",
    ),
    h("h3", {}, h("a", { href: href("/abs/", { id: paper.id }) }, paper.title)),
    h("p", { class: "authors" }, authorLinks(paper)),
    full,
    h(
      "p",
      { class: "soft" },
      `Submitted ${dates.british(paper.date)} · ${comments(paper)} · `,
      subjectLine(paper),
      ` · cited ${count(paper.cited, "time")}`,
    ),
  );
}

// ---- finding ----

function homePage(world, main) {
  const week = world.papers.filter(({ date }) => date > dates.plus(world.today, -7));
  add(
    main,
    h(
      "section",
      { class: "welcome" },
      h(
        "h1",
        {},
        `${ARCHIVE} holds ${count(world.papers.length, "preprint")} in ${SUBJECTS.length} subjects`,
      ),
      h(
        "p",
        {},
        `${count(week.length, "paper")} came in during the last seven days. Reading is free; no account is needed.`,
      ),
    ),
    h(
      "div",
      { class: "subjects" },
      SUBJECTS.map(({ code, name, things }) => {
        const papers = world.papers.filter((paper) => paper.subject === code);
        return h(
          "section",
          { class: "subject" },
          h("h2", {}, h("a", { href: href("/list/", { subject: code }) }, name), h("small", {}, code)),
          h(
            "p",
            { class: "soft" },
            `${count(papers.length, "paper")}; among others ${things.slice(0, 3).join(", ")}`,
          ),
          h(
            "ul",
            {},
            papers
              .slice(0, 2)
              .map((paper) => h("li", {}, h("a", { href: href("/abs/", { id: paper.id }) }, paper.title))),
          ),
        );
      }),
    ),
  );
  return "Subjects";
}

function listPage(world, main) {
  const { subject: code, page: asked, size = "25" } = query();
  const papers = world.papers.filter((paper) => paper.subject === code);
  const per = Number(size) || 25,
    pages = Math.ceil(papers.length / per),
    page = Math.min(Math.max(1, Number(asked) || 1), pages);
  const shown = papers.slice((page - 1) * per, page * per);
  const days = [...new Set(shown.map(({ date }) => date))];
  add(
    main,
    h(
      "div",
      { class: "row" },
      h("h1", {}, subject(code)?.name ?? "Unknown subject"),
      h("span", { class: "soft" }, code),
      h(
        "div",
        { class: "end" },
        dropdown({
          label: "Show",
          id: "size",
          value: size,
          options: ["10", "25", "50"].map((value) => ({ value, text: `${value} a page` })),
          onchange: (value) => visit(href("/list/", { subject: code, size: value })),
        }),
      ),
    ),
    h("p", { class: "soft" }, `${count(papers.length, "paper")}, newest first`),
    days.map((day) =>
      h(
        "section",
        {},
        h("h2", { class: "day" }, `${dates.weekday(day)}, ${dates.british(day)}`),
        shown.filter(({ date }) => date === day).map(entry),
      ),
    ),
    pagination({ page, pages, address: (to) => href("/list/", { subject: code, size, page: to }) }),
  );
  return subject(code)?.name;
}

function searchPage(world, main) {
  const asked = query();
  const { q = "", from = "", to = "", order = "newest", size = "25" } = asked;
  const subjects = asked.subjects ? asked.subjects.split("|") : [];
  const found = search(world, { q, field: asked.field, subjects, from, to, order });
  const per = Number(size) || 25,
    pages = Math.ceil(found.length / per),
    page = Math.min(Math.max(1, Number(asked.page) || 1), Math.max(1, pages));
  const go = (changes) => visit(href("/search/", { ...asked, page: "", ...changes }));
  const told = [
    q ? `“${q}” in ${FIELDS.find(({ value }) => value === (asked.field ?? "all")).text.toLowerCase()}` : null,
    subjects.length ? subjects.map((code) => subject(code).name).join(" or ") : null,
    from ? `from ${dates.british(from)}` : null,
    to ? `until ${dates.british(to)}` : null,
  ]
    .filter(Boolean)
    .join(", ");
  add(
    main,
    h(
      "div",
      { class: "row" },
      h(
        "div",
        {},
        h("h1", { id: "found" }, found.length ? count(found.length, "result") : "No results"),
        h("p", { class: "soft" }, told || "All papers"),
      ),
      h("a", { class: "button end", href: href("/advanced/", asked) }, "Refine"),
      dropdown({
        label: "Order",
        id: "order",
        value: order,
        options: ORDERS,
        onchange: (value) => go({ order: value }),
      }),
    ),
    found.length
      ? found.slice((page - 1) * per, page * per).map(entry)
      : h(
          "p",
          { class: "notice" },
          "Nothing fits. Use fewer words, another field, or a longer span of days.",
        ),
    pagination({ page, pages, address: (to) => href("/search/", { ...asked, page: to }) }),
  );
  return "Search";
}

function advancedPage(world, main) {
  const asked = query();
  const given = { from: asked.from ?? "", to: asked.to ?? "" };
  const chosen = new Set(asked.subjects ? asked.subjects.split("|") : []);
  const first = dates.plus(world.today, -760);
  const picker = (name, label) =>
    datePicker({
      label,
      name,
      value: given[name],
      shown: given[name] || world.today,
      min: first,
      max: world.today,
      format: dates.british,
      onpick: (day) => {
        given[name] = day;
      },
    });
  const form = h(
    "form",
    {
      class: "box",
      novalidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        const values = Object.fromEntries(new FormData(form));
        if (given.from && given.to && given.from > given.to) {
          $(".date-field .error", form).textContent = "The first day is after the last";
          return;
        }
        visit(
          href("/search/", {
            q: tidy(values.q),
            field: values.field,
            subjects: [...chosen].join("|"),
            ...given,
            order: values.order,
            size: values.size,
          }),
        );
      },
    },
    h(
      "div",
      { class: "form" },
      field({ label: "Search term", name: "q", value: asked.q ?? "", required: false }),
      field({ label: "Field", name: "field", value: asked.field ?? "all", options: FIELDS }),
    ),
    h(
      "fieldset",
      {},
      h("legend", {}, "Subjects"),
      h(
        "div",
        { class: "ticks" },
        SUBJECTS.map(({ code, name }) =>
          h(
            "label",
            { class: "check" },
            h("input", {
              type: "checkbox",
              value: code,
              checked: chosen.has(code),
              onchange: (event) => (event.target.checked ? chosen.add(code) : chosen.delete(code)),
            }),
            name,
          ),
        ),
      ),
    ),
    h(
      "fieldset",
      {},
      h("legend", {}, "Submitted between"),
      h("div", { class: "form" }, picker("from", "First day"), picker("to", "Last day")),
    ),
    h(
      "div",
      { class: "form" },
      field({ label: "Order", name: "order", value: asked.order ?? "newest", options: ORDERS }),
      field({
        label: "Results a page",
        name: "size",
        value: asked.size ?? "25",
        options: ["10", "25", "50"],
      }),
    ),
    h(
      "div",
      { class: "row" },
      h("button", { class: "primary", id: "run" }, "Search"),
      h("a", { class: "button", href: "/advanced/" }, "Clear"),
    ),
  );
  add(main, h("h1", {}, "Advanced search"), form);
  return "Advanced search";
}

function authorPage(world, main) {
  const { name } = query();
  const papers = papersBy(world, name);
  if (!papers.length) return missing(main);
  const others = new Map();
  for (const paper of papers)
    for (const other of paper.authors) if (other !== name) others.set(other, (others.get(other) ?? 0) + 1);
  const { subject: code = "", order = "newest" } = query();
  const kept = papers.filter((paper) => !code || paper.subject === code);
  if (order === "cited") kept.sort((a, b) => b.cited - a.cited);
  add(
    main,
    h("h1", {}, name),
    h(
      "dl",
      { class: "facts" },
      [
        ["Papers", papers.length],
        ["Citations", papers.reduce((sum, paper) => sum + paper.cited, 0)],
        ["Co-authors", others.size],
        ["Since", dates.year(papers.at(-1).date)],
      ].map(([term, value]) => h("div", {}, h("dd", {}, String(value)), h("dt", {}, term))),
    ),
    h(
      "div",
      { class: "columns" },
      h(
        "div",
        {},
        h(
          "div",
          { class: "row" },
          h("h2", {}, count(kept.length, "paper")),
          h(
            "div",
            { class: "end" },
            dropdown({
              label: "Subject",
              id: "subject",
              value: code,
              options: [
                { value: "", text: "All" },
                ...[...new Set(papers.map((paper) => paper.subject))].map((value) => ({
                  value,
                  text: subject(value).name,
                })),
              ],
              onchange: (value) => visit(href("/author/", { name, subject: value, order })),
            }),
          ),
          dropdown({
            label: "Order",
            id: "order",
            value: order,
            options: ORDERS.filter(({ value }) => value !== "oldest"),
            onchange: (value) => visit(href("/author/", { name, subject: code, order: value })),
          }),
        ),
        kept.map(entry),
      ),
      h(
        "aside",
        {},
        h("h2", {}, "Co-authors"),
        [...others]
          .sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1))
          .slice(0, 12)
          .map(([other, times]) =>
            h(
              "p",
              {},
              h("a", { href: href("/author/", { name: other }) }, other),
              h("span", { class: "soft" }, ` ${times}`),
            ),
          ),
      ),
    ),
  );
  return name;
}

// ---- one paper ----

function paperPage(world, main) {
  const paper = world.byId.get(query().id);
  if (!paper) return missing(main);
  const listed = h("button", {
    id: "bookmark",
    onclick: () =>
      request("list", () => {
        if (state().list.some(({ id }) => id === paper.id)) return apply("list.remove", { id: paper.id });
        apply("list.add", { id: paper.id });
        toast("Added to your reading list.");
      }).catch((error) => toast(error.message, "error")),
  });
  const mark = () =>
    fill(
      listed,
      icon("bookmark", 16),
      state().list.some(({ id }) => id === paper.id) ? "On your reading list" : "Add to reading list",
    );
  onChange(mark);
  mark();
  const small = (list) =>
    list.length
      ? h(
          "ol",
          { class: "references" },
          list.map((one) =>
            h(
              "li",
              {},
              `${one.authors.slice(0, 3).join(", ")}${one.authors.length > 3 ? " et al." : ""}. `,
              h("a", { href: href("/abs/", { id: one.id }) }, one.title),
              `. ${ARCHIVE}:${one.id}, ${dates.year(one.date)}.`,
            ),
          ),
        )
      : h("p", { class: "soft" }, "None yet.");
  const citing = world.papers.filter((one) => one.references.includes(paper));
  add(
    main,
    h(
      "div",
      { class: "paper" },
      h(
        "article",
        {},
        h(
          "p",
          { class: "soft" },
          h("a", { href: href("/list/", { subject: paper.subject }) }, subject(paper.subject).name),
          ` · [Submitted on ${dates.british(paper.date)}${paper.versions.length > 1 ? `, last revised ${dates.british(paper.versions.at(-1).date)}` : ""}]`,
        ),
        h("h1", {}, paper.title),
        h("p", { class: "authors" }, authorLinks(paper)),
        h("blockquote", {}, h("b", {}, "Abstract. "), paper.abstract),
        h(
          "table",
          { class: "meta" },
          [
            ["Comments", comments(paper)],
            ["Subjects", subjectLine(paper)],
            ["Cite as", `${ARCHIVE}:${paper.id} [${paper.subject}]`],
            paper.journal ? ["Journal reference", paper.journal] : null,
            ["Licence", paper.license],
            ["Cited", count(paper.cited, "time")],
          ]
            .filter(Boolean)
            .map(([name, value]) => h("tr", {}, h("th", {}, name), h("td", {}, value))),
        ),
        tabs([
          {
            id: "history",
            title: "Submission history",
            panel: () =>
              h(
                "table",
                { class: "history" },
                h(
                  "tr",
                  {},
                  ["Version", "Date", "Size"].map((title) => h("th", {}, title)),
                ),
                paper.versions.map(({ date, size }, index) =>
                  h(
                    "tr",
                    {},
                    h("td", {}, `v${index + 1}`),
                    h("td", {}, `${dates.weekday(date).slice(0, 3)}, ${dates.british(date)}`),
                    h("td", {}, `${count(size, "KB", "KB")}`),
                  ),
                ),
              ),
          },
          {
            id: "references",
            title: `References (${paper.references.length})`,
            panel: () => small(paper.references),
          },
          { id: "citations", title: `Citations (${citing.length})`, panel: () => small(citing) },
        ]),
      ),
      h(
        "aside",
        { class: "access" },
        h("h2", {}, "Access"),
        h(
          "a",
          { class: "button primary", id: "pdf", href: href("/pdf/", { id: paper.id }), target: "_blank" },
          "View PDF",
        ),
        h("button", { id: "bibtex", onclick: () => bibtex(paper) }, "Export BibTeX"),
        listed,
        h("button", { id: "report", onclick: () => report(paper) }, "Report an error"),
        h("h3", {}, "Related papers"),
        world.papers
          .filter((one) => one !== paper && one.subject === paper.subject && one.thing === paper.thing)
          .slice(0, 4)
          .map((one) => h("p", {}, h("a", { href: href("/abs/", { id: one.id }) }, one.title))),
      ),
    ),
  );
  return paper.title;
}

function bibtex(paper) {
  const lines = [
    `@misc{${bibtexKey(paper)},`,
    `  title   = {${paper.title}},`,
    `  author  = {${paper.authors.join(" and ")}},`,
    `  year    = {${dates.year(paper.date)}},`,
    `  eprint  = {${paper.id}},`,
    `  archivePrefix = {${ARCHIVE}},`,
    `  primaryClass  = {${paper.subject}}`,
    "}",
  ];
  modal({
    title: "BibTeX citation",
    wide: true,
    body: h("pre", { id: "bibtex-text" }, lines.join("\n")),
    actions: [{ text: "Close", primary: true, act() {} }],
  });
}

function report(paper) {
  const form = h(
    "form",
    { onsubmit: (event) => event.preventDefault() },
    field({
      label: "Kind of error",
      name: "kind",
      options: ["Choose…", ...ERRORS],
    }),
    field({ label: "What is wrong?", name: "text", type: "textarea" }),
    field({ label: "Your email", name: "email", type: "email" }),
  );
  modal({
    title: `Report an error in ${paper.id}`,
    body: form,
    actions: [
      { text: "Cancel", act() {} },
      {
        text: "Send report",
        primary: true,
        act: () => {
          const values = validate(form, reportRules);
          if (!values) return false;
          apply("report.send", { id: paper.id, ...values });
          toast("Thank you. The moderators will look at it.");
        },
      },
    ],
  });
}

/** A viewer around the paper's own sheet, which lies in a frame. */
function pdfPage(world, main) {
  const paper = world.byId.get(query().id);
  if (!paper) return missing(main);
  let zoom = 100;
  const frame = h("iframe", { title: paper.title, src: href("/sheet/", { id: paper.id }) });
  const shown = h("span", {}, "100%");
  const turn = (by) => {
    zoom = Math.max(50, Math.min(200, zoom + by));
    shown.textContent = `${zoom}%`;
    frame.contentDocument.body.style.zoom = String(zoom / 100);
  };
  main.className = "viewer";
  add(
    main,
    h(
      "header",
      {},
      h("b", {}, `${paper.id}.pdf`),
      h("span", { class: "soft" }, `${paper.pages} pages`),
      h(
        "span",
        { class: "end row" },
        h("button", { "aria-label": "Smaller", onclick: () => turn(-10) }, icon("minus", 16)),
        shown,
        h("button", { "aria-label": "Larger", onclick: () => turn(10) }, icon("plus", 16)),
      ),
    ),
    frame,
  );
  return `${paper.id}.pdf`;
}

function sheetPage(world, main) {
  const paper = world.byId.get(query().id);
  if (!paper) return missing(main);
  const { data } = subject(paper.subject);
  main.className = "sheet";
  add(
    main,
    h("h1", {}, paper.title),
    h("p", { class: "authors" }, paper.authors.join(", ")),
    h("section", { class: "abstract" }, h("h2", {}, "Abstract"), h("p", {}, paper.abstract)),
    h(
      "div",
      { class: "two" },
      h(
        "section",
        {},
        h("h2", {}, "1 Introduction"),
        h(
          "p",
          {},
          `${paper.thing.charAt(0).toUpperCase()}${paper.thing.slice(1)} are used wherever ${paper.aim} matters. ${paper.abstract}`,
        ),
        h(
          "p",
          {},
          `The rest of this paper describes the setting (Section 2), the results (Section 3) and what follows from them (Section 4). Related work is discussed along the way [1–${paper.references.length}].`,
        ),
      ),
      h(
        "section",
        {},
        h("h2", {}, "2 Setting"),
        h(
          "p",
          {},
          `All experiments use ${data.slice(0, -1).join(", ")} and ${data.at(-1)}. Each number is the mean of ${3 + (paper.pages % 4)} runs; spreads are below one point and left out for clarity. Hyper-parameters are those of the smallest configuration unless said otherwise.`,
        ),
        h(
          "p",
          {},
          "We follow the usual protocol: the last tenth of the data is held out, and nothing is tuned on it.",
        ),
      ),
    ),
    h(
      "section",
      {},
      h("h2", {}, "3 Results"),
      h(
        "table",
        {},
        h("caption", {}, `Table 1: ${paper.measure} of each method by data set.`),
        h(
          "tr",
          {},
          ["Method", ...data].map((name) => h("th", {}, name)),
        ),
        paper.results.map(({ method, values }) =>
          h(
            "tr",
            {},
            h("td", {}, method),
            values.map((value) => h("td", {}, value.toFixed(1))),
          ),
        ),
      ),
    ),
    h(
      "section",
      {},
      h("h2", {}, "4 Conclusion"),
      h(
        "p",
        {},
        `The results support a careful use of ${paper.thing} for ${paper.aim}. ${paper.license} applies to text and figures.`,
      ),
    ),
    h(
      "section",
      {},
      h("h2", {}, "References"),
      paper.references.map((one, index) =>
        h(
          "p",
          {},
          `[${index + 1}] ${one.authors[0]} and others. ${one.title}. ${ARCHIVE}:${one.id}, ${dates.year(one.date)}.`,
        ),
      ),
    ),
  );
  return paper.title;
}

// ---- what the reader keeps ----

function libraryPage(world, main) {
  const draw = () => {
    const { list } = state();
    const folders = [...new Set(list.map(({ folder }) => folder))].sort();
    fill(
      main,
      h("h1", {}, "Your reading list"),
      h(
        "p",
        { class: "soft" },
        list.length
          ? `${count(list.length, "paper")}, ${list.filter(({ read }) => read).length} read`
          : "Nothing here yet. Use “Add to reading list” on a paper's page.",
      ),
      folders.map((folder) =>
        h(
          "section",
          {},
          h("h2", { class: "day" }, folder),
          list
            .filter((one) => one.folder === folder)
            .map((one) => {
              const paper = world.byId.get(one.id);
              return h(
                "article",
                { class: `kept${one.read ? " read" : ""}`, "data-id": one.id },
                h(
                  "label",
                  { class: "check" },
                  h("input", {
                    type: "checkbox",
                    checked: one.read,
                    onchange: (event) => apply("list.mark", { id: one.id, read: event.target.checked }),
                  }),
                  "Read",
                ),
                h(
                  "div",
                  {},
                  h("a", { class: "title", href: href("/abs/", { id: paper.id }) }, paper.title),
                  h(
                    "p",
                    { class: "soft" },
                    `${paper.authors[0]}${paper.authors.length > 1 ? " and others" : ""} · submitted ${dates.british(paper.date)} · cited ${count(paper.cited, "time")}`,
                  ),
                  one.note ? h("p", { class: "note" }, one.note) : null,
                ),
                h(
                  "div",
                  { class: "row end" },
                  h("button", { onclick: () => noteDialog(one, paper) }, "Edit"),
                  h(
                    "button",
                    {
                      class: "remove",
                      onclick: () => apply("list.remove", { id: one.id }),
                    },
                    "Remove",
                  ),
                ),
              );
            }),
        ),
      ),
    );
  };
  onChange(draw);
  draw();
  return "Reading list";
}

function noteDialog(one, paper) {
  const form = h(
    "form",
    { onsubmit: (event) => event.preventDefault() },
    h("p", {}, paper.title),
    field({ label: "Folder", name: "folder", value: one.folder }),
    field({ label: "Note", name: "note", value: one.note, required: false }),
  );
  modal({
    title: "Edit entry",
    body: form,
    actions: [
      { text: "Cancel", act() {} },
      {
        text: "Save",
        primary: true,
        act: () => {
          const values = validate(form, entryRules);
          if (!values) return false;
          apply("list.edit", { id: one.id, ...values });
        },
      },
    ],
  });
}

function alertsPage(world, main) {
  const frame = h("div", {});
  const form = h(
    "form",
    {
      class: "box",
      novalidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        const values = validate(form, alertRules);
        const chosen = [...form.querySelectorAll('input[type="checkbox"]:checked')].map(({ value }) => value);
        const problem = subjectsProblem(chosen);
        $("#subject-error").textContent = problem;
        if (!values || problem) return;
        apply("alert.create", { ...values, subjects: chosen });
        form.reset();
        toast("The alert is set up.");
      },
    },
    h(
      "div",
      { class: "form" },
      field({ label: "Email", name: "email", type: "email" }),
      field({ label: "Only papers with this word", name: "word", required: false }),
    ),
    h(
      "fieldset",
      {},
      h("legend", {}, "Subjects"),
      h(
        "div",
        { class: "ticks" },
        SUBJECTS.map(({ code, name }) =>
          h("label", { class: "check" }, h("input", { type: "checkbox", value: code }), name),
        ),
      ),
      h("small", { class: "error", id: "subject-error", role: "alert" }),
    ),
    h(
      "div",
      { class: "field" },
      h("span", {}, "How often"),
      h(
        "div",
        { class: "row" },
        OFTEN.map((value) =>
          h("label", { class: "check" }, h("input", { type: "radio", name: "often", value }), value),
        ),
      ),
      h("small", { class: "error", role: "alert" }),
    ),
    h("button", { class: "primary", id: "create-alert" }, "Create alert"),
  );
  const draw = () =>
    fill(
      frame,
      h("h2", {}, "Your alerts"),
      state().alerts.length
        ? state().alerts.map((alert, at) =>
            h(
              "p",
              { class: "row kept" },
              `${alert.often} to ${alert.email}: ${alert.subjects.map((code) => subject(code).name).join(", ")}${alert.word ? `, with “${alert.word}”` : ""}`,
              h(
                "button",
                {
                  class: "end",
                  onclick: () => apply("alert.delete", { at }),
                },
                "Delete",
              ),
            ),
          )
        : h("p", { class: "soft" }, "None."),
    );
  onChange(draw);
  draw();
  add(
    main,
    h("h1", {}, "Email alerts"),
    h("p", {}, "We write to you when new papers arrive in the subjects you choose."),
    form,
    frame,
  );
  return "Email alerts";
}

function aboutPage(world, main) {
  add(
    main,
    h("h1", {}, `About ${ARCHIVE}`),
    h(
      "p",
      {},
      `${ARCHIVE} keeps ${count(world.papers.length, "preprint")}. Every paper has an identifier of year, month and number, such as ${world.papers[0].id}, and keeps it through all its versions.`,
    ),
    h("h2", {}, "Subjects"),
    h(
      "table",
      {},
      h(
        "tr",
        {},
        ["Code", "Subject", "Papers"].map((title) => h("th", {}, title)),
      ),
      SUBJECTS.map(({ code, name }) =>
        h(
          "tr",
          {},
          h("td", {}, code),
          h("td", {}, h("a", { href: href("/list/", { subject: code }) }, name)),
          h("td", {}, String(world.papers.filter((paper) => paper.subject === code).length)),
        ),
      ),
    ),
  );
  return "About";
}

function missing(main) {
  add(
    main,
    h("h1", {}, "Not found"),
    h("p", {}, "There is no such paper or author. ", h("a", { href: "/" }, "To the subjects")),
  );
  return "Not found";
}
