// The search engine's pages, and the pages it finds.

import { visit } from "/kit/address.js";
import { add, count, fill, grouped, h, icon, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { draws } from "/kit/random.js";
import { apply, href, onChange, query, site, state } from "/kit/site.js";
import {
  autocomplete,
  chooser,
  cookieBanner,
  facts,
  leaf,
  modal,
  pagination,
  radios,
  toast,
} from "/kit/ui.js";
import {
  COLOURS,
  KEEPS,
  KIND_TABS,
  NAME,
  SPANS,
  TABS,
  VOTES,
  freshState,
  makeWorld,
  pictures,
  questionsOf,
  search,
  subjectOf,
} from "/world.js";
import { transitions } from "/transitions.js";

const PAGES = {
  "": homePage,
  search: resultsPage,
  page: foundPage,
  saved: savedPage,
  history: historyPage,
  settings: settingsPage,
};

site({
  name: "search",
  world: makeWorld,
  state: freshState,
  transitions,
  harmless: ["cookies", "history", "saved", "settings"],
  show(world) {
    const main = h("main", {}),
      name = location.pathname.split("/")[1],
      page = PAGES[name] ?? homePage;
    document.body.className = name || "home";
    // A page that was found looks like one of its own site.
    if (page !== foundPage) document.body.append(header(world, name));
    document.body.append(main);
    document.title = `${page(world, main) ?? NAME}${page === foundPage ? "" : ` · ${NAME}`}`;
    if (page !== foundPage) {
      document.body.append(
        h(
          "footer",
          { class: "bottom" },
          h(
            "span",
            {},
            `${NAME} looks through ${grouped(world.pages.length)} pages and ${grouped(world.pictures.length)} pictures`,
          ),
        ),
      );
      cookieBanner({
        name: NAME,
        text: "Cookies keep your settings and what you searched. We do not follow you to other sites.",
      });
    }
  },
});

const lamp = (size) => {
  const node = h("span", { class: "lamp", "aria-hidden": "true" });
  node.innerHTML = `<svg width="${size}" height="${size}" viewBox="0 0 40 40"><path d="M14 8a6 6 0 0 1 12 0" fill="none" stroke="#174d43" stroke-width="2.500"/><rect x="11" y="8" width="18" height="5" rx="2" fill="#174d43"/><path d="M10 13h20l3 18H7z" fill="#f4b942"/><path d="M20 17c4 5 5 7 5 9a5 5 0 0 1-10 0c0-2 1-4 5-9z" fill="#fff4cf"/><rect x="6" y="31" width="28" height="5" rx="2" fill="#174d43"/></svg>`;
  return node;
};

/** The field for a query, with subjects and former queries suggested. */
function seeker(world) {
  const input = h("input", {
    type: "text",
    name: "q",
    value: query().q ?? "",
    placeholder: "Search the web",
    "aria-label": "Search",
  });
  const go = (q) =>
    visit(href("/search/", { q, type: location.pathname === "/search/" ? query().type : "" }));
  const form = h(
    "form",
    {
      class: "seeker",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        if (tidy(input.value)) go(tidy(input.value));
      },
    },
    icon("search", 18),
    input,
    h("button", { class: "primary", id: "seek" }, "Search"),
  );
  autocomplete(input, (text) => {
    const wanted = tidy(text).toLowerCase();
    return wanted.length < 2
      ? []
      : [
          ...state()
            .history.filter((q) => q.toLowerCase().startsWith(wanted))
            .slice(0, 2)
            .map((q) => ({ text: q, detail: "searched before", act: () => go(q) })),
          ...world.subjects
            .filter(({ name }) => name.toLowerCase().includes(wanted))
            .slice(0, 5)
            .map(({ name, kind }) => ({ text: name, detail: kind, act: () => go(name) })),
        ];
  });
  return form;
}

function header(world, name) {
  return h(
    "header",
    { class: "top" },
    name === "" ? h("span") : h("a", { class: "logo", href: "/" }, lamp(30), NAME),
    name === "search" ? seeker(world) : null,
    h(
      "nav",
      {},
      h("a", { href: "/saved/", id: "saved" }, "Saved"),
      h("a", { href: "/history/", id: "history" }, "History"),
      h("a", { href: "/settings/", id: "settings" }, "Settings"),
    ),
  );
}

function homePage(world, main) {
  const draw = draws(world.today);
  add(
    main,
    h(
      "div",
      { class: "front" },
      h("h1", {}, lamp(74), NAME),
      seeker(world),
      h(
        "p",
        { class: "soft" },
        "Try: ",
        draw
          .some(world.subjects, 3)
          .map(({ name }, at) => [at ? " · " : "", h("a", { href: href("/search/", { q: name }) }, name)]),
      ),
      h(
        "ul",
        { class: "hints" },
        [
          ["“exact words”", "keeps a phrase together"],
          ["-word", "leaves pages with it out"],
          ["site:name.example", "looks on one site"],
        ].map(([code, text]) => h("li", {}, h("code", {}, code), text)),
      ),
    ),
  );
  return "Search";
}

// ---- results ----

function resultsPage(world, main) {
  const asked = query(),
    q = tidy(asked.q ?? ""),
    type = asked.type ?? "";
  const { history, settings } = state();
  if (q && settings.keep && history[0] !== q) apply("search.note", { q });
  const go = (changes) => visit(href("/search/", { ...asked, page: "", ...changes }));
  const kinds = h(
    "nav",
    { class: "kinds" },
    KIND_TABS.map(([id, title]) =>
      h(
        "a",
        {
          href: href("/search/", { q, type: id }),
          id: `type-${id || "all"}`,
          "aria-current": id === type ? "page" : null,
        },
        title,
      ),
    ),
  );
  add(
    main,
    kinds,
    type === "images" ? imageResults(world, q, asked, go) : pageResults(world, q, asked, go, type),
  );
  return q || "Search";
}

function pageResults(world, q, asked, go, type) {
  const base = { q, kind: type, days: Number(asked.days) || 0, sort: asked.sort },
    found = search(world, { ...base, host: asked.host }),
    hosts = [...new Set(search(world, base).map(({ host }) => host))].sort();
  const { shown, page, pages } = leaf(found, asked.page, state().settings.size),
    subject = subjectOf(world, q);
  const tools = h(
    "div",
    { class: "row tools" },
    h("span", { class: "soft", id: "found" }, count(found.length, "result")),
    h(
      "div",
      { class: "end row" },
      chooser("", "days", asked.days ?? "", SPANS, (days) => go({ days })),
      chooser(
        "Site",
        "host",
        asked.host ?? "",
        [["", "Any"], ...hosts.slice(0, 16).map((one) => [one, one])],
        (host) => go({ host }),
      ),
      chooser(
        "Sort",
        "sort",
        asked.sort ?? "",
        [
          ["", "Relevance"],
          ["date", "Newest"],
        ],
        (sort) => go({ sort }),
      ),
    ),
  );
  const list = shown.map((one) => result(world, one)),
    questions = subject && page === 1 && !type ? peopleAsk(world, subject) : null;
  if (questions) list.splice(2, 0, questions);
  return [
    tools,
    h(
      "div",
      { class: "results" },
      h(
        "div",
        {},
        list,
        found.length
          ? null
          : h(
              "div",
              { class: "nothing" },
              h("h2", {}, `Nothing found for ${q}`),
              h("p", {}, "Check the spelling, or use fewer words."),
            ),
        pagination({ page, pages, address: (to) => href("/search/", { ...asked, page: to }) }),
      ),
      subject ? knowledge(world, subject) : null,
    ),
  ];
}

const favicon = (host) =>
  h("i", { class: "favicon", style: { "--hue": draws(host).below(360) } }, host[0].toUpperCase());

function result(world, page) {
  const target = state().settings.tab ? "_blank" : null;
  const keep = h("button", {
    class: "plain keep",
    onclick: () => {
      apply(state().saved.includes(page.id) ? "result.remove" : "result.save", { id: page.id });
      draw();
    },
  });
  const draw = () => {
    const on = state().saved.includes(page.id);
    fill(keep, icon("bookmark", 15), on ? "Saved" : "Save").classList.toggle("on", on);
  };
  draw();
  return h(
    "article",
    { class: "result", "data-id": page.id },
    h(
      "p",
      { class: "row where" },
      favicon(page.host),
      h(
        "span",
        {},
        h("b", {}, page.host),
        h(
          "small",
          { class: "soft" },
          `https://${page.host} › ${page.kind === "forum" ? "threads" : page.kind === "news" ? "stories" : "pages"}`,
        ),
      ),
    ),
    h("h3", {}, h("a", { href: href("/page/", { id: page.id }), target }, page.title)),
    h(
      "p",
      { class: "snippet" },
      h("span", { class: "soft" }, `${dates.short(page.day)} — `),
      page.body[1].slice(0, 150),
      "…",
    ),
    h(
      "p",
      { class: "row acts" },
      h(
        "button",
        { class: "plain preview", onclick: () => previewDialog(page) },
        icon("file", 15),
        "Preview",
      ),
      keep,
      h("a", { class: "tab", href: href("/page/", { id: page.id }), target: "_blank" }, "New tab"),
    ),
  );
}

/** The page in a frame over the results. */
function previewDialog(page) {
  modal({
    title: page.host,
    wide: true,
    body: h("iframe", { class: "frame", title: page.title, src: href("/page/", { id: page.id, framed: 1 }) }),
  });
}

const peopleAsk = (world, subject) =>
  h(
    "section",
    { class: "ask" },
    h("h2", {}, "People also ask"),
    questionsOf(world, subject).map(({ question, answer, page }) =>
      h(
        "details",
        {},
        h("summary", {}, question, icon("down", 16)),
        h("p", {}, answer),
        h("small", {}, h("a", { href: href("/page/", { id: page.id }) }, page.host)),
      ),
    ),
  );

function knowledge(world, subject) {
  const vote = h("p", { class: "soft vote" });
  const draw = () => {
    const said = state().votes[subject.name];
    fill(
      vote,
      said
        ? `You found this ${said}.`
        : [
            "Is this right? ",
            ...VOTES.map((word) =>
              h(
                "button",
                {
                  class: "plain link",
                  onclick: () => {
                    apply("subject.vote", { name: subject.name, word });
                    draw();
                  },
                },
                word,
              ),
            ),
          ],
    );
  };
  draw();
  return h(
    "aside",
    { class: "knowledge" },
    scene(subject.hue, subject.name, 340, 170),
    h(
      "div",
      {},
      h("h2", {}, subject.name),
      h("p", { class: "soft" }, subject.kind),
      h("p", {}, subject.about),
      facts([
        ...subject.facts.map(([term, value]) => [
          term,
          /^(Founded|Opened|Built)$/.test(term) ? String(value) : grouped(value),
        ]),
        ["Begun by", h("a", { href: href("/search/", { q: `"${subject.founder}"` }) }, subject.founder)],
      ]),
      vote,
    ),
  );
}

function imageResults(world, q, asked, go) {
  const found = pictures(world, { q, colour: asked.colour, size: Number(asked.size) || 0, sort: asked.sort });
  return [
    h(
      "div",
      { class: "row tools" },
      h("span", { class: "soft", id: "found" }, count(found.length, "picture")),
      h(
        "div",
        { class: "end row" },
        chooser(
          "Colour",
          "colour",
          asked.colour ?? "",
          [["", "Any"], ...COLOURS.map(([name]) => [name, name])],
          (colour) => go({ colour }),
        ),
        chooser(
          "Size",
          "size",
          asked.size ?? "",
          [
            ["", "Any"],
            ["2000", "At least 2,000 px wide"],
            ["4000", "At least 4,000 px wide"],
          ],
          (size) => go({ size }),
        ),
        chooser(
          "Sort",
          "sort",
          asked.sort ?? "",
          [
            ["", "Relevance"],
            ["size", "Largest"],
          ],
          (sort) => go({ sort }),
        ),
      ),
    ),
    found.length
      ? h(
          "div",
          { class: "pictures" },
          found.map((one) =>
            h(
              "button",
              {
                class: "picture",
                "data-id": one.id,
                onclick: () =>
                  modal({
                    title: one.title,
                    wide: true,
                    body: h(
                      "div",
                      {},
                      scene(one.hue, one.id, 660, 360),
                      facts([
                        ["Size", `${grouped(one.width)} × ${grouped(one.height)} px`],
                        ["Colour", one.colour],
                        ["Site", one.host],
                      ]),
                    ),
                  }),
              },
              scene(one.hue, one.id, 260, 168),
              h("b", {}, one.title),
              h("small", { class: "soft" }, `${one.width} × ${one.height} · ${one.host}`),
            ),
          ),
        )
      : h("div", { class: "nothing" }, h("h2", {}, "No pictures")),
  ];
}

/** A landscape in one colour. */
function scene(hue, seed, width, height) {
  const draw = draws(`scene/${seed}`),
    node = h("span", {
      class: "scene",
      role: "img",
      "aria-label": "Picture",
      style: { width: `${width}px`, height: `${height}px` },
    });
  const hills = [0, 1, 2]
    .map((at) => {
      const y = 90 + at * 28;
      return `<path d="M0 ${y + draw.below(16)}Q${60 + draw.below(80)} ${y - 40 - draw.below(30)} ${150 + draw.below(40)} ${y}T320 ${y - 10}V200H0z" fill="hsl(${hue} ${52 - at * 6}% ${56 - at * 14}%)"/>`;
    })
    .join("");
  const thing = draw.one([
    '<path d="M150 60h20l6 80h-32z" fill="#fff" opacity=".9"/><rect x="152" y="48" width="16" height="12" fill="#444"/>',
    '<path d="M40 120q120-70 240 0v8q-120-60-240 0z" fill="#fff" opacity=".85"/>',
    '<path d="M120 130v-50l40-26l40 26v50z" fill="#fff" opacity=".85"/>',
    '<circle cx="160" cy="96" r="34" fill="#fff" opacity=".8"/><rect x="126" y="96" width="68" height="40" fill="#fff" opacity=".9"/>',
  ]);
  node.innerHTML = `<svg viewBox="0 0 320 200" preserveAspectRatio="xMidYMid slice"><rect width="320" height="200" fill="hsl(${hue} 60% 86%)"/><circle cx="${50 + draw.below(220)}" cy="40" r="18" fill="#fff8d8"/>${hills}${thing}</svg>`;
  return node;
}

// ---- a page that was found ----

function foundPage(world, main) {
  const page = world.byId.get(query().id);
  if (!page) {
    add(main, h("h1", {}, "404: this page is gone"));
    return "Not found";
  }
  const hue = draws(page.host).below(360),
    links = world.pages.filter((other) => other.host === page.host && other !== page).slice(0, 4);
  document.body.style.setProperty("--hue", hue);
  add(
    main,
    h(
      "header",
      { class: "site-head" },
      h("b", {}, page.host.replace(".example", "")),
      query().framed
        ? null
        : h("a", { href: href("/search/", { q: page.subject }), class: "end" }, `Back to ${NAME}`),
    ),
    h(
      "div",
      { class: "site-body" },
      h(
        "article",
        {},
        h("h1", {}, page.title),
        h(
          "p",
          { class: "byline" },
          "By ",
          h("b", { id: "author" }, page.author),
          ` · ${dates.long(page.day)}`,
        ),
        scene(hue, page.id, 640, 220),
        page.body.map((text) => h("p", {}, text)),
        h("h2", {}, "At a glance"),
        h(
          "table",
          { class: "figures" },
          page.figures.map(({ term, value }) => h("tr", {}, h("th", {}, term), h("td", {}, grouped(value)))),
        ),
        page.kind === "forum" ? h("p", { class: "soft" }, count(page.replies, "reply", "replies")) : null,
      ),
      h(
        "aside",
        {},
        h("h2", {}, "Also here"),
        links.length
          ? links.map((other) =>
              h(
                "p",
                {},
                h("a", { href: href("/page/", { id: other.id, framed: query().framed }) }, other.title),
              ),
            )
          : h("p", { class: "soft" }, "Nothing else yet."),
      ),
    ),
  );
  return page.title;
}

// ---- what the visitor keeps ----

function savedPage(world, main) {
  const draw = () => {
    const { saved } = state();
    fill(
      main,
      h("h1", {}, "Saved results"),
      saved.length
        ? saved.map((id) => {
            const page = world.byId.get(id);
            return h(
              "article",
              { class: "kept", "data-id": id },
              favicon(page.host),
              h(
                "div",
                {},
                h("h3", {}, h("a", { href: href("/page/", { id }) }, page.title)),
                h("small", { class: "soft" }, page.host),
              ),
              h(
                "button",
                {
                  class: "end remove",
                  onclick: () => apply("result.remove", { id }),
                },
                "Remove",
              ),
            );
          })
        : h("p", { class: "notice" }, "Nothing saved yet."),
    );
  };
  onChange(draw);
  draw();
  return "Saved";
}

function historyPage(world, main) {
  const draw = () => {
    const { history } = state();
    fill(
      main,
      h(
        "div",
        { class: "row" },
        h("h1", {}, "Search history"),
        history.length
          ? h(
              "button",
              {
                class: "end",
                id: "clear",
                onclick: () => apply("history.clear"),
              },
              "Clear all",
            )
          : null,
      ),
      history.length
        ? history.map((q) =>
            h(
              "article",
              { class: "kept", "data-q": q },
              icon("clock", 18),
              h("a", { href: href("/search/", { q }) }, q),
              h(
                "button",
                {
                  class: "end plain",
                  "aria-label": `Forget ${q}`,
                  onclick: () => apply("history.forget", { q }),
                },
                icon("close", 17),
              ),
            ),
          )
        : h("p", { class: "notice" }, "You have not searched yet."),
    );
  };
  onChange(draw);
  draw();
  return "History";
}

/** The settings: a title, and how an option is shown. */
const SETTINGS = {
  size: ["Results a page", String],
  safe: ["Safe search", String],
  tab: ["Open results", (tab) => TABS[Number(tab)]],
  keep: ["Searches", (keep) => KEEPS[Number(keep)]],
};

function settingsPage(world, main) {
  const given = { ...state().settings };
  add(
    main,
    h("h1", {}, "Settings"),
    h(
      "form",
      {
        class: "card",
        onsubmit: (event) => {
          event.preventDefault();
          apply("settings.save", given);
          toast("Your settings are saved.");
        },
      },
      world.settings.map(([name, options]) => {
        const [title, shown] = SETTINGS[name];
        return radios({
          title,
          name,
          value: shown(given[name]),
          options: options.map(shown),
          onchange: (text) => {
            given[name] = options.find((option) => shown(option) === text);
          },
        });
      }),
      h("button", { class: "primary", id: "save" }, "Save"),
    ),
  );
  return "Settings";
}
