// The map service's pages: a panel on the left, the map beside it.

import { visit } from "/kit/address.js";
import { add, count, fill, grouped, h, icon, stars, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { apply, href, query, site, state } from "/kit/site.js";
import {
  autocomplete,
  chooser,
  cookieBanner,
  facts,
  field,
  leaf,
  listsDialog,
  modal,
  pagination,
  radios,
  tabs,
  ticks,
  toast,
  validate,
} from "/kit/ui.js";
import {
  CATEGORIES,
  FEATURES,
  MODES,
  NAME,
  clock,
  distance,
  freshState,
  makeWorld,
  metresTold,
  minutes,
  mode,
  reviewsOf,
  search,
  way,
} from "/world.js";
import { mapView } from "/map.js";
import {
  VISITS,
  WRONG,
  editRules,
  noteRules,
  ratingProblem,
  reviewRules,
  transitions,
} from "/transitions.js";

const PAGES = {
  "": homePage,
  search: searchPage,
  place: placePage,
  directions: directionsPage,
  saved: savedPage,
};
const PER_PAGE = 10;

site({
  name: "maps",
  world: makeWorld,
  state: freshState,
  transitions,
  harmless: ["cookies", "recent", "view", "layer", "lists"],
  show(world) {
    const main = h("main", {});
    document.body.append(header(world), main);
    const page = PAGES[location.pathname.split("/")[1]] ?? homePage;
    document.title = `${page(world, main) ?? NAME} - ${NAME}`;
    cookieBanner({ name: NAME, text: "Cookies keep your lists and what you looked for." });
  },
});

const placeLink = (place) => href("/place/", { id: place.id });
const show = (place) => visit(placeLink(place));
const dot = (place) => h("i", { class: "dot", style: { "--hue": place.hue } }, place.kind[0]);

/** A field for a place of the town; what is chosen is the place of that name. */
function placeField(world, name, value, label) {
  const input = h("input", { type: "text", name, value, placeholder: label, "aria-label": label });
  const frame = h("div", { class: "field" }, input);
  autocomplete(input, (text) => {
    const wanted = tidy(text).toLowerCase();
    return wanted.length < 2
      ? []
      : world.places
          .filter((place) => place.name.toLowerCase().includes(wanted))
          .slice(0, 6)
          .map((place) => ({
            text: place.name,
            detail: place.address,
            act: () => {
              input.value = place.name;
            },
          }));
  });
  return { input, frame };
}
const placeNamed = (world, text) =>
  world.places.find(({ name }) => name.toLowerCase() === tidy(text).toLowerCase());

function header(world) {
  const input = h("input", {
    type: "search",
    name: "q",
    value: query().q ?? "",
    placeholder: `Search ${world.town}`,
    "aria-label": "Search the map",
  });
  const form = h(
    "form",
    {
      class: "find",
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        visit(href("/search/", { q: tidy(input.value) }));
      },
    },
    input,
    h("button", { class: "primary", "aria-label": "Search" }, icon("search", 18)),
  );
  autocomplete(input, (text) =>
    tidy(text).length < 2
      ? []
      : search(world, { q: tidy(text) })
          .slice(0, 7)
          .map((place) => ({ text: place.name, detail: place.address, act: () => visit(placeLink(place)) })),
  );
  return h(
    "header",
    { class: "top" },
    h("a", {
      class: "logo",
      href: "/",
      html: '<svg width="30" height="30" viewBox="0 0 30 30"><path d="M2 6l8-3v21l-8 3z" fill="#2f8f6b"/><path d="M10 3l10 4v21l-10-4z" fill="#8fd0ad"/><path d="M20 7l8-3v21l-8 3z" fill="#2f8f6b"/><path d="M15 21c-4-5-5.500-6.500-5.500-9a5.500 5.500 0 0 1 11 0c0 2.500-1.500 4-5.500 9z" fill="#d43f34"/></svg><span>Wayfold</span>',
    }),
    form,
    h(
      "nav",
      {},
      h("a", { href: "/directions/", id: "directions" }, icon("route", 18), "Directions"),
      h("a", { href: "/saved/", id: "saved" }, icon("bookmark", 18), "Saved"),
    ),
  );
}

function homePage(world, main) {
  const { recent } = state();
  add(
    main,
    h("h1", {}, world.town),
    h(
      "p",
      { class: "soft" },
      `${count(world.places.length, "place")}, ${world.across.length + world.down.length} streets and a river`,
    ),
    h("h2", {}, "Look around"),
    h(
      "div",
      { class: "kinds" },
      CATEGORIES.map(({ name, hue }) =>
        h(
          "a",
          { href: href("/search/", { kind: name }), style: { "--hue": hue } },
          h("i", { class: "dot" }, name[0]),
          name,
        ),
      ),
    ),
    recent.length ? [h("h2", {}, "Lately looked at"), recent.map((id) => row(world.byId.get(id)))] : null,
    h("h2", {}, "Most reviewed"),
    search(world, {})
      .slice(0, 5)
      .map((place) => row(place)),
    h("p", { class: "soft tip" }, "Drag the map to move it. Ctrl and the wheel zoom."),
  );
  mapView(world, { onpick: show });
  return "Map";
}

/** A place in a list. */
const row = (place, at = null, from = null) =>
  h(
    "article",
    { class: "result", "data-id": place.id },
    at === null ? dot(place) : h("i", { class: "number" }, String(at)),
    h(
      "div",
      {},
      h("h3", {}, h("a", { href: placeLink(place) }, place.name)),
      h(
        "p",
        {},
        h("b", {}, place.rating.toFixed(1)),
        " ",
        stars(place.rating, 13),
        h("span", { class: "soft" }, ` (${grouped(place.count)})`),
      ),
      h("p", { class: "soft" }, `${place.kind} · ${place.address}`),
      from ? h("p", { class: "away" }, `${metresTold(distance(from, place))} away`) : null,
    ),
  );

function searchPage(world, main) {
  const asked = query(),
    near = world.byId.get(asked.near) ?? null,
    list = (text) => (text ? text.split("|") : []);
  const filters = {
    q: asked.q,
    kind: asked.kind,
    rating: Number(asked.rating) || 0,
    features: list(asked.features),
    day: asked.day ? Number(asked.day) : null,
    hour: asked.hour ? Number(asked.hour) : null,
    near,
    sort: asked.sort,
  };
  const found = search(world, filters),
    { shown, page, pages } = leaf(found, asked.page, PER_PAGE);
  const go = (changes) => visit(href("/search/", { ...asked, page: "", ...changes }));
  const sorts = [
    ...(near ? [["distance", "Distance"]] : []),
    ["reviews", "Most reviewed"],
    ["rating", "Highest rated"],
    ["name", "Name"],
  ];
  const folded = h(
    "details",
    {
      class: "filters",
      open: Boolean(asked.rating || asked.features || asked.day || asked.hour || asked.filters),
    },
    h("summary", {}, icon("filter", 16), "Filters"),
    radios({
      title: "Rating",
      name: "rating",
      value: asked.rating ?? "",
      options: [
        { value: "", text: "Any" },
        { value: "3.5", text: "3.5 and up" },
        { value: "4", text: "4.0 and up" },
      ],
      onchange: (rating) => go({ rating, filters: 1 }),
    }),
    ticks({
      title: "Features",
      name: "features",
      chosen: filters.features,
      options: FEATURES,
      onchange: (values) => go({ features: values.join("|"), filters: 1 }),
    }),
    h(
      "fieldset",
      { class: "choices opens" },
      h("legend", {}, "Open at"),
      chooser(
        "Day",
        "day",
        asked.day ?? "",
        [["", "Any"], ...dates.WEEKDAYS.map((name, at) => [String(at), name])],
        (day) => go({ day, filters: 1 }),
      ),
      chooser(
        "Hour",
        "hour",
        asked.hour ?? "",
        [
          ["", "Any"],
          ...[7, 8, 9, 12, 15, 18, 19, 20, 21, 22].map((hour) => [
            String(hour),
            `${String(hour).padStart(2, "0")}:00`,
          ]),
        ],
        (hour) => go({ hour, filters: 1 }),
      ),
    ),
    h("a", { href: href("/search/", { q: asked.q, kind: asked.kind, near: asked.near }) }, "Clear filters"),
  );
  add(
    main,
    h(
      "div",
      { class: "row" },
      h("h1", {}, asked.kind || (asked.q ? `“${asked.q}”` : "Places")),
      h("span", { class: "soft end", id: "found" }, count(found.length, "place")),
    ),
    near ? h("p", { class: "near" }, "Near ", h("a", { href: placeLink(near) }, near.name)) : null,
    h(
      "div",
      { class: "row tools" },
      chooser(
        "Kind",
        "kind",
        asked.kind ?? "",
        [["", "All"], ...CATEGORIES.map(({ name }) => [name, name])],
        (kind) => go({ kind }),
      ),
      chooser("Sort", "sort", asked.sort ?? sorts[0][0], sorts, (sort) => go({ sort })),
    ),
    folded,
    shown.map((place, at) => row(place, (page - 1) * PER_PAGE + at + 1, near)),
    found.length ? null : h("p", { class: "notice" }, "No place fits."),
    pagination({ page, pages, address: (to) => href("/search/", { ...asked, page: to }) }),
  );
  mapView(world, {
    pins: shown.map((place, at) => ({ ...place, sign: (page - 1) * PER_PAGE + at + 1 })),
    look: near ? { at: "near", ids: [near.id] } : { at: "town", ids: [] },
    onpick: show,
  });
  return "Search";
}

// ---- one place ----

function placePage(world, main) {
  const place = world.byId.get(query().id);
  if (!place) {
    add(main, h("h1", {}, "There is no such place"));
    mapView(world, { onpick: show });
    return "Not found";
  }
  apply("place.open", { id: place.id });
  const saved = h("button", { id: "save", onclick: () => saveDialog(place, drawSaved) });
  const drawSaved = () => {
    const on = state().lists.some(({ places }) => places.includes(place.id));
    saved.replaceChildren(icon("bookmark", 18), on ? "Saved" : "Save");
    saved.classList.toggle("on", on);
  };
  drawSaved();
  add(
    main,
    h("div", { class: "cover", style: { "--hue": place.hue } }, h("b", {}, place.kind)),
    h("h1", {}, place.name),
    h(
      "p",
      { class: "row" },
      h("b", {}, place.rating.toFixed(1)),
      stars(place.rating, 15),
      h("span", { class: "soft" }, `${grouped(place.count)} ratings · ${"$".repeat(place.price)}`),
    ),
    h(
      "div",
      { class: "row acts" },
      h(
        "a",
        { class: "button primary", id: "go", href: href("/directions/", { to: place.id }) },
        icon("route", 18),
        "Directions",
      ),
      saved,
      h(
        "a",
        { class: "button", id: "nearby", href: href("/search/", { near: place.id }) },
        icon("pin", 18),
        "Nearby",
      ),
    ),
    tabs([
      { id: "overview", title: "Overview", panel: () => overview(world, place) },
      { id: "reviews", title: "Reviews", panel: () => reviewList(place) },
      {
        id: "about",
        title: "About",
        panel: () =>
          h(
            "ul",
            { class: "features" },
            FEATURES.map((one) =>
              h(
                "li",
                { class: place.features.includes(one) ? "" : "none" },
                icon(place.features.includes(one) ? "check" : "close", 16),
                one,
              ),
            ),
          ),
      },
    ]),
  );
  mapView(world, {
    pins: [{ ...place, sign: "●" }],
    look: { at: "place", ids: [place.id] },
    onpick: show,
  });
  return place.name;
}

const span = (hours) =>
  !hours
    ? "Closed"
    : hours.closes - hours.opens >= 1440
      ? "Open all day"
      : `${clock(hours.opens)} to ${hours.closes === 1440 ? "24:00" : clock(hours.closes)}`;

function overview(world, place) {
  const today = dates.weekdayIndex(world.today);
  return h(
    "div",
    {},
    facts([
      ["Address", place.address],
      ["Phone", place.phone],
      ["Kind", place.kind],
    ]),
    h("h2", {}, "Opening hours"),
    h(
      "table",
      { class: "hours" },
      dates.WEEKDAYS.map((name, day) =>
        h(
          "tr",
          { class: day === today ? "today" : "" },
          h("td", {}, name),
          h("td", {}, span(place.hours[day])),
        ),
      ),
    ),
    h(
      "button",
      { class: "plain link", id: "suggest", onclick: () => suggestDialog(place) },
      "Suggest an edit",
    ),
  );
}

function reviewList(place) {
  let sort = "new";
  const frame = h("div", { class: "reviews" });
  const orders = {
    new: (a, b) => a.age - b.age,
    high: (a, b) => b.rating - a.rating || a.age - b.age,
    low: (a, b) => a.rating - b.rating || a.age - b.age,
  };
  const draw = () => {
    const own = state()
      .reviews.filter(({ id }) => id === place.id)
      .map((review) => ({ ...review, author: "You", age: 0 }));
    fill(
      frame,
      h(
        "div",
        { class: "row" },
        chooser(
          "Sort",
          "review-sort",
          sort,
          [
            ["new", "Newest"],
            ["high", "Highest"],
            ["low", "Lowest"],
          ],
          (value) => {
            sort = value;
            draw();
          },
        ),
        h(
          "button",
          { class: "end", id: "write", onclick: () => reviewDialog(place, draw) },
          "Write a review",
        ),
      ),
      [...own, ...reviewsOf(place)]
        .sort(orders[sort])
        .map((review) =>
          h(
            "article",
            { class: "review" },
            h(
              "div",
              { class: "row" },
              h("b", {}, review.author),
              h("span", { class: "soft end" }, review.age ? `${review.age} days ago` : "today"),
            ),
            stars(review.rating, 13),
            h("p", {}, review.text),
          ),
        ),
    );
  };
  draw();
  return frame;
}

function reviewDialog(place, done) {
  let rating = 0;
  const marks = h("div", { class: "marks", role: "radiogroup", "aria-label": "Stars" }),
    error = h("small", { class: "error", role: "alert" });
  const drawMarks = () =>
    fill(
      marks,
      [1, 2, 3, 4, 5].map((one) =>
        h(
          "button",
          {
            type: "button",
            role: "radio",
            "aria-checked": String(one === rating),
            "aria-label": `${one} ${one === 1 ? "star" : "stars"}`,
            class: one <= rating ? "on" : "",
            onclick: () => {
              rating = one;
              drawMarks();
            },
          },
          "★",
        ),
      ),
    );
  drawMarks();
  const form = h(
    "form",
    { onsubmit: (event) => event.preventDefault() },
    marks,
    error,
    field({ label: "Your review", name: "text", type: "textarea" }),
    field({
      label: "When were you there?",
      name: "when",
      options: VISITS,
    }),
  );
  modal({
    title: `Review ${place.name}`,
    body: form,
    actions: [
      { text: "Cancel", act() {} },
      {
        text: "Post review",
        primary: true,
        act: () => {
          const values = validate(form, reviewRules);
          error.textContent = ratingProblem(rating);
          if (!values || error.textContent) return false;
          apply("review.post", { id: place.id, rating, ...values });
          toast("Thank you for your review.");
          done();
        },
      },
    ],
  });
}

function suggestDialog(place) {
  const form = h(
    "form",
    { onsubmit: (event) => event.preventDefault() },
    field({
      label: "What is wrong?",
      name: "what",
      options: WRONG,
    }),
    field({ label: "What is right?", name: "right" }),
  );
  modal({
    title: "Suggest an edit",
    body: form,
    actions: [
      { text: "Cancel", act() {} },
      {
        text: "Send",
        primary: true,
        act: () => {
          const values = validate(form, editRules);
          if (!values) return false;
          apply("edit.suggest", { id: place.id, ...values });
          toast("Thank you, we will look at it.");
        },
      },
    ],
  });
}

function saveDialog(place, done) {
  listsDialog({
    title: `Save ${place.name}`,
    word: "list",
    key: "lists",
    members: "places",
    id: place.id,
    done,
  });
}

// ---- directions and lists ----

function directionsPage(world, main) {
  const asked = query(),
    stops = [asked.from, asked.via, asked.to].map((id) => world.byId.get(id)),
    chosen = mode(asked.mode);
  let third = Boolean(asked.via);
  const error = h("p", { class: "error", role: "alert" }),
    holder = h("div", {});
  const fields = [
    placeField(world, "from", stops[0]?.name ?? "", "From"),
    placeField(world, "via", stops[1]?.name ?? "", "By way of"),
    placeField(world, "to", stops[2]?.name ?? "", "To"),
  ];
  const drawFields = () => fill(holder, fields[0].frame, third ? fields[1].frame : null, fields[2].frame);
  drawFields();
  const open = (way) =>
    visit(href("/directions/", { mode: asked.mode, from: asked.from, via: asked.via, to: asked.to, ...way }));
  const submit = (event) => {
    event.preventDefault();
    const places = fields.map(({ input }, at) =>
      at === 1 && !third ? null : placeNamed(world, input.value),
    );
    error.textContent = !places[0]
      ? "Choose where you start"
      : third && !places[1]
        ? "Choose the stop on the way"
        : !places[2]
          ? "Choose where you go"
          : "";
    if (!error.textContent) open({ from: places[0].id, via: places[1]?.id, to: places[2].id });
  };
  add(
    main,
    h("h1", {}, "Directions"),
    h(
      "div",
      { class: "modes", role: "group", "aria-label": "How" },
      MODES.map(({ id, name }) =>
        h(
          "button",
          {
            type: "button",
            "data-mode": id,
            "aria-pressed": String(id === chosen.id),
            onclick: () => open({ mode: id }),
          },
          icon({ walk: "walk", cycle: "route", drive: "car" }[id], 18),
          name,
        ),
      ),
    ),
    h(
      "form",
      { class: "ends", onsubmit: submit },
      holder,
      h(
        "div",
        { class: "row" },
        third
          ? null
          : h(
              "button",
              {
                type: "button",
                class: "plain link",
                id: "add-stop",
                onclick: () => {
                  third = true;
                  drawFields();
                },
              },
              "Add a stop",
            ),
        h("button", { class: "primary end", id: "route" }, "Show the way"),
      ),
      error,
    ),
  );
  const ready = stops[0] && stops[2] && (!asked.via || stops[1]),
    points = ready ? stops.filter(Boolean) : [];
  const ways = points.slice(1).map((to, at) => ({ to, from: points[at], ...way(world, points[at], to) }));
  const total = ways.reduce((sum, { metres }) => sum + metres, 0),
    time = ways.reduce((sum, { metres }) => sum + minutes(metres, chosen.id), 0);
  const line = (leg, at) =>
    h(
      "li",
      {},
      h("span", {}, at ? `Turn ${leg.turn} onto ` : `Head ${leg.heading} on `, h("b", {}, leg.street)),
      h("small", { class: "soft" }, metresTold(leg.metres)),
    );
  if (ready)
    add(
      main,
      h(
        "section",
        { class: "summary" },
        h("b", { id: "time" }, `${time} min`),
        h("span", { id: "length" }, `${grouped(total)} m`),
        h("span", { class: "soft" }, chosen.name),
      ),
      ways.map(({ from, to, legs }) =>
        h(
          "section",
          { class: "steps" },
          h("h3", {}, `${from.name} to ${to.name}`),
          h("ol", {}, legs.map(line)),
        ),
      ),
    );
  mapView(world, {
    pins: points.map((place, at) => ({ ...place, sign: "ABC"[at] })),
    route: ways.length ? ways.flatMap(({ points: list }) => list) : null,
    look: points.length ? { at: "route", ids: points.map(({ id }) => id) } : null,
    onpick: show,
  });
  return "Directions";
}

function savedPage(world, main) {
  mapView(world, {
    pins: state().lists.flatMap(({ places }) => places.map((id) => world.byId.get(id))),
    look: { at: "town", ids: [] },
    onpick: show,
  });
  const draw = () =>
    fill(
      main,
      h("h1", {}, "Saved"),
      state().lists.map((list) =>
        h(
          "section",
          { class: "list", "data-list": list.name },
          h(
            "div",
            { class: "row" },
            h("h2", {}, list.name),
            h("span", { class: "soft" }, count(list.places.length, "place")),
            h(
              "button",
              { class: "plain link end note-button", onclick: () => noteDialog(list, draw) },
              list.note ? "Edit note" : "Add note",
            ),
          ),
          list.note ? h("p", { class: "note" }, list.note) : null,
          list.places.map((id) => {
            const place = world.byId.get(id);
            return h(
              "article",
              { class: "result", "data-id": id },
              dot(place),
              h(
                "div",
                {},
                h("h3", {}, h("a", { href: placeLink(place) }, place.name)),
                h("p", { class: "soft" }, `${place.kind} · ${place.address}`),
              ),
              h(
                "button",
                {
                  class: "plain end",
                  "aria-label": `Remove ${place.name}`,
                  onclick: () => {
                    apply("list.remove", { name: list.name, id });
                    draw();
                  },
                },
                icon("trash", 18),
              ),
            );
          }),
        ),
      ),
    );
  draw();
  return "Saved";
}

function noteDialog(list, done) {
  const form = h(
    "form",
    { onsubmit: (event) => event.preventDefault() },
    field({ label: `Note on ${list.name}`, name: "note", value: list.note }),
  );
  modal({
    title: "Note",
    body: form,
    actions: [
      { text: "Cancel", act() {} },
      {
        text: "Save note",
        primary: true,
        act: () => {
          const values = validate(form, noteRules);
          if (!values) return false;
          apply("list.note", { name: list.name, ...values });
          done();
        },
      },
    ],
  });
}
