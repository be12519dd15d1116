// The booking site's pages.

import { visit } from "/kit/address.js";
import { add, count, fill, grouped, h, icon, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { apply, href, onChange, query, request, site, state } from "/kit/site.js";
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
  ARRIVALS,
  GUESTS_MOST,
  ROOMS_MOST,
  bookingNamed,
  bookingsOf,
  cancelRules,
  daysProblem,
  findRules,
  guestRules,
  lastDay,
  offered,
  partyProblem,
  paymentRules,
  totalOf,
  transitions,
} from "/transitions.js";
import {
  AMENITIES,
  CITIES,
  KINDS,
  NAME,
  REASONS,
  SCORES,
  TRAVELLERS,
  city,
  fits,
  freshState,
  makeWorld,
  nightly,
  reviewsOf,
  search,
  stay,
  word,
} from "/world.js";
import { cityMap, view } from "/pictures.js";

const PAGES = {
  "": homePage,
  search: searchPage,
  hotel: hotelPage,
  book: bookPage,
  saved: savedPage,
  bookings: bookingsPage,
};
const PER_PAGE = 10;
const money = (dollars) => `$${grouped(dollars)}`;

site({
  name: "hotels",
  world: makeWorld,
  state: freshState,
  transitions,
  harmless: ["cookies", "saved", "unlocked", "recent"],
  show(world) {
    const main = h("main", {});
    document.body.append(
      header(),
      main,
      h(
        "footer",
        { class: "bottom" },
        h("b", {}, NAME),
        h("p", {}, "Prices are in US dollars for the whole stay, taxes included. You pay when you book."),
      ),
    );
    const page = PAGES[location.pathname.split("/")[1]] ?? homePage;
    document.title = `${page(world, main) ?? NAME} | ${NAME}`;
    cookieBanner({
      name: NAME,
      text: "We use cookies to keep your search and to show prices. You decide which.",
    });
  },
});

function header() {
  const badge = h("b", {});
  const refresh = () => {
    badge.textContent = state().saved.length ? String(state().saved.length) : "";
  };
  onChange(refresh);
  refresh();
  return h(
    "header",
    { class: "top" },
    h(
      "div",
      { class: "bar" },
      h("a", { class: "logo", href: "/" }, h("i", {}), "restwell"),
      h(
        "nav",
        {},
        h("a", { href: "/" }, icon("bed", 18), "Stays"),
        h("a", { href: "/saved/", id: "saved" }, icon("heart", 18), "Saved ", badge),
        h("a", { href: "/bookings/", id: "bookings" }, icon("calendar", 18), "Manage booking"),
      ),
    ),
  );
}

/** What is asked for: place, days, people. Days or people that the form would refuse are left out: an address can hold anything. */
function asking(world) {
  const { where = "", from = "", to = "", guests = "2", rooms = "1" } = query(),
    party = { guests: Number(guests), rooms: Number(rooms) };
  return {
    where,
    ...(daysProblem(world, { from, to }) ? { from: "", to: "" } : { from, to }),
    ...(partyProblem(party) ? { guests: 2, rooms: 1 } : party),
  };
}

/** The search panel, on the first page and above the results. */
function panel(world) {
  const given = asking(world);
  const error = h("p", { class: "error", role: "alert" });
  const where = h("input", {
    type: "text",
    name: "where",
    value: given.where,
    placeholder: "Where are you going?",
    "aria-label": "Destination",
  });
  const picker = (name, label, ahead) =>
    datePicker({
      label,
      name,
      value: given[name],
      shown: given[name] || (name === "to" && given.from) || world.today,
      min: dates.plus(world.today, ahead),
      max: lastDay(world),
      onpick: (day) => {
        given[name] = day;
      },
    });
  const people = h("button", { type: "button", id: "people", "aria-haspopup": "dialog" });
  const pane = h("div", { class: "people-pane", hidden: true });
  const draw = () => {
    people.replaceChildren(
      icon("people", 18),
      `${count(given.guests, "guest")} · ${count(given.rooms, "room")}`,
    );
    fill(
      pane,
      [
        ["guests", "Guests", GUESTS_MOST],
        ["rooms", "Rooms", ROOMS_MOST],
      ].map(([key, label, most]) =>
        h(
          "div",
          { class: "row" },
          h("span", {}, label),
          h(
            "span",
            { class: "stepper end" },
            h(
              "button",
              {
                type: "button",
                "aria-label": `Fewer ${key}`,
                disabled: given[key] <= 1,
                onclick: () => {
                  given[key] -= 1;
                  draw();
                },
              },
              icon("minus", 15),
            ),
            h("b", {}, String(given[key])),
            h(
              "button",
              {
                type: "button",
                "aria-label": `More ${key}`,
                disabled: given[key] >= most,
                onclick: () => {
                  given[key] += 1;
                  draw();
                },
              },
              icon("plus", 15),
            ),
          ),
        ),
      ),
      h(
        "button",
        {
          type: "button",
          class: "primary",
          onclick: () => {
            pane.hidden = true;
          },
        },
        "Done",
      ),
    );
  };
  people.addEventListener("click", () => {
    pane.hidden = !pane.hidden;
  });
  draw();
  const form = h(
    "form",
    {
      class: "panel-search",
      novalidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        const name = tidy(where.value).split(",")[0],
          known = CITIES.find((one) => one.name.toLowerCase() === name.toLowerCase());
        error.textContent = known
          ? daysProblem(world, given) || partyProblem(given)
          : "Choose a destination from the list";
        if (!error.textContent) visit(href("/search/", { ...given, where: known.name }));
      },
    },
    h("div", { class: "field" }, h("label", {}, "Destination"), where),
    picker("from", "Check-in", 0),
    picker("to", "Check-out", 1),
    h("div", { class: "field people" }, h("label", {}, "Who"), people, pane),
    h("button", { class: "primary", id: "search" }, "Search"),
  );
  autocomplete(where, (text) =>
    CITIES.filter(
      ({ name, country }) =>
        tidy(text).length && `${name} ${country}`.toLowerCase().includes(tidy(text).toLowerCase()),
    ).map(({ name, country }) => ({
      text: name,
      detail: country,
      act: () => {
        where.value = `${name}, ${country}`;
      },
    })),
  );
  return h("div", { class: "search-frame" }, form, error);
}

const link = (hotel, given) =>
  href("/hotel/", { id: hotel.id, from: given.from, to: given.to, guests: given.guests, rooms: given.rooms });
const badge = (hotel) =>
  h(
    "div",
    { class: "score" },
    h("span", {}, h("b", {}, word(hotel.score)), h("small", {}, count(hotel.reviews, "review"))),
    h("i", {}, hotel.score.toFixed(1)),
  );
const starLine = (hotel) =>
  hotel.stars
    ? h("span", { class: "star-line", "aria-label": `${hotel.stars} stars` }, "★".repeat(hotel.stars))
    : h("span", { class: "kind" }, hotel.kind);

function heart(hotel) {
  const node = h(
    "button",
    {
      class: "heart",
      "aria-label": `Save ${hotel.name}`,
      onclick: (event) => {
        event.preventDefault();
        apply("saved.toggle", { id: hotel.id });
      },
    },
    icon("heart", 18),
  );
  const draw = () => {
    const on = state().saved.includes(hotel.id);
    node.classList.toggle("on", on);
    node.setAttribute("aria-pressed", String(on));
  };
  onChange(draw);
  draw();
  return node;
}

// ---- finding ----

function homePage(world, main) {
  const best = [...world.hotels].sort((a, b) => b.score - a.score).slice(0, 4);
  const from = dates.plus(world.today, 14),
    given = { from, to: dates.plus(from, 2), guests: 2, rooms: 1 };
  add(
    main,
    h(
      "section",
      { class: "hero" },
      h(
        "div",
        {},
        h("h1", {}, "Find a place that feels right"),
        h("p", {}, `${count(world.hotels.length, "place")} to stay in ${CITIES.length} cities`),
        panel(world),
      ),
    ),
    h(
      "section",
      {},
      h("h2", {}, "Popular cities"),
      h(
        "div",
        { class: "cities" },
        CITIES.map((place, index) =>
          h(
            "a",
            { class: "city", href: href("/search/", { where: place.name, ...given }) },
            view({ id: place.name, hue: index * 47 + 10, kind: "City" }),
            h("b", {}, place.name),
            h("small", {}, `${place.country} · ${PER(world, place)} places`),
          ),
        ),
      ),
    ),
    h(
      "section",
      {},
      h("h2", {}, "Guests rate these highest"),
      h(
        "div",
        { class: "cities" },
        best.map((hotel) =>
          h(
            "a",
            { class: "city", href: link(hotel, given) },
            view(hotel),
            h("b", {}, hotel.name),
            h("small", {}, `${hotel.city} · ${hotel.score.toFixed(1)} ${word(hotel.score)}`),
          ),
        ),
      ),
    ),
  );
  return "Places to stay";
}
const PER = (world, place) => world.hotels.filter((hotel) => hotel.city === place.name).length;

function searchPage(world, main) {
  const asked = query(),
    given = asking(world);
  if (!city(given.where) || !given.from || !given.to) {
    add(main, panel(world), h("p", { class: "notice" }, "Tell us where and when to see what is free."));
    return "Search";
  }
  const list = (text) => (text ? text.split("|") : []);
  const filters = {
    kinds: list(asked.kinds),
    stars: list(asked.stars).map(Number),
    amenities: list(asked.amenities),
    score: Number(asked.score) || 0,
    max: Number(asked.max) || 0,
    refundable: asked.refundable === "1",
  };
  const found = search(world, { ...given, ...filters, sort: asked.sort });
  const pages = Math.ceil(found.length / PER_PAGE),
    page = Math.min(Math.max(1, Number(asked.page) || 1), Math.max(1, pages)),
    nights = dates.between(given.from, given.to);
  const go = (changes) => visit(href("/search/", { ...asked, page: "", ...changes }));
  const toggle = (key, values, value) =>
    go({
      [key]: (values.includes(value) ? values.filter((one) => one !== value) : [...values, value]).join("|"),
    });
  const ticks = (title, key, values, options, text = (one) => one) =>
    h(
      "fieldset",
      {},
      h("legend", {}, title),
      options.map((one) =>
        h(
          "label",
          { class: "check" },
          h("input", {
            type: "checkbox",
            checked: values.includes(one),
            onchange: () => toggle(key, values, one),
          }),
          text(one),
        ),
      ),
    );
  const max = h("input", {
    type: "text",
    name: "max",
    value: asked.max ?? "",
    placeholder: "Any",
    "aria-label": "Highest total price",
  });
  const side = h(
    "aside",
    { class: "filters" },
    h(
      "button",
      { class: "map-button", id: "map", onclick: () => mapDialog(found, given) },
      cityMap([], 220, 90),
      h("span", {}, icon("pin", 16), "Show on map"),
    ),
    h(
      "fieldset",
      {},
      h("legend", {}, "Total price up to"),
      h(
        "form",
        {
          class: "row",
          onsubmit: (event) => {
            event.preventDefault();
            go({ max: /^\d+$/.test(max.value.trim()) ? max.value.trim() : "" });
          },
        },
        max,
        h("button", {}, "Set"),
      ),
    ),
    h(
      "fieldset",
      {},
      h("legend", {}, "Guest score"),
      [9, 8, 7].map((score) =>
        h(
          "label",
          { class: "check" },
          h("input", {
            type: "radio",
            name: "score",
            checked: filters.score === score,
            onchange: () => go({ score }),
          }),
          `${score}+ ${word(score)}`,
        ),
      ),
    ),
    ticks("Stars", "stars", filters.stars, [5, 4, 3, 2], (one) => `${one} stars`),
    ticks("Kind of place", "kinds", filters.kinds, KINDS),
    ticks("Amenities", "amenities", filters.amenities, AMENITIES),
    h(
      "fieldset",
      {},
      h("legend", {}, "Terms"),
      h(
        "label",
        { class: "check" },
        h("input", {
          type: "checkbox",
          checked: filters.refundable,
          onchange: () => go({ refundable: filters.refundable ? "" : "1" }),
        }),
        "Free cancellation",
      ),
    ),
    h("a", { href: href("/search/", given) }, "Clear filters"),
  );
  add(
    main,
    panel(world),
    h(
      "div",
      { class: "row results-head" },
      h(
        "div",
        {},
        h("h1", {}, `${given.where}, ${city(given.where).country}`),
        h(
          "p",
          { class: "soft", id: "found" },
          `${count(found.length, "place")} · ${count(nights, "night")}, ${dates.brief(given.from)} to ${dates.brief(given.to)}`,
        ),
      ),
      h(
        "div",
        { class: "end" },
        dropdown({
          label: "Sort by",
          id: "sort",
          value: asked.sort ?? "recommended",
          options: [
            ["recommended", "Our picks"],
            ["price", "Lowest price"],
            ["score", "Best guest score"],
            ["distance", "Nearest to centre"],
          ].map(([value, text]) => ({ value, text })),
          onchange: (sort) => go({ sort }),
        }),
      ),
    ),
    h(
      "div",
      { class: "results" },
      side,
      h(
        "div",
        {},
        found.slice((page - 1) * PER_PAGE, page * PER_PAGE).map(({ hotel, room, total }) =>
          h(
            "article",
            { class: "stay", "data-id": hotel.id },
            h("a", { class: "shot", href: link(hotel, given) }, view(hotel)),
            heart(hotel),
            h(
              "div",
              { class: "stay-text" },
              h(
                "div",
                { class: "row" },
                h("h3", {}, h("a", { href: link(hotel, given) }, hotel.name)),
                starLine(hotel),
              ),
              h(
                "p",
                {},
                h("a", { href: link(hotel, given) }, hotel.district),
                h("span", { class: "soft" }, ` · ${hotel.distance.toFixed(1)} km from centre`),
              ),
              h(
                "p",
                { class: "tags" },
                hotel.amenities.slice(0, 4).map((one) => h("i", {}, one)),
              ),
              h("p", {}, h("b", {}, room.type), h("span", { class: "soft" }, ` · ${room.beds}`)),
              h(
                "p",
                { class: "terms" },
                room.refundable ? "Free cancellation" : null,
                room.breakfast ? `${room.refundable ? " · " : ""}Breakfast included` : null,
              ),
            ),
            h(
              "div",
              { class: "stay-price" },
              badge(hotel),
              h("p", { class: "soft" }, `${count(nights, "night")}, ${count(given.guests, "guest")}`),
              h("b", { class: "total" }, money(total)),
              h("a", { class: "button primary", href: link(hotel, given) }, "See availability"),
            ),
          ),
        ),
        found.length
          ? null
          : h("p", { class: "notice" }, "Nothing is free with these filters. Take one away."),
        pagination({ page, pages, address: (to) => href("/search/", { ...asked, page: to }) }),
      ),
    ),
  );
  return given.where;
}

function mapDialog(found, given) {
  const told = h("div", { class: "map-told" }, h("p", { class: "soft" }, "Press a price to see the place."));
  const pins = found.slice(0, 40).map(({ hotel, total }) => ({
    x: hotel.x,
    y: hotel.y,
    text: money(total),
    label: hotel.name,
    act: () =>
      fill(
        told,
        h("a", { href: link(hotel, given) }, h("b", {}, hotel.name)),
        h(
          "span",
          {},
          ` ${hotel.score.toFixed(1)} ${word(hotel.score)} · ${hotel.district} · ${money(total)}`,
        ),
      ),
  }));
  modal({ title: given.where, wide: true, body: h("div", {}, cityMap(pins, 680, 400), told) });
}

// ---- one place ----

function hotelPage(world, main) {
  const hotel = world.byId.get(query().id),
    given = asking(world);
  if (!hotel) {
    add(main, h("h1", {}, "This place is not here"), h("a", { href: "/" }, "Search again"));
    return "Not found";
  }
  const dated = given.from && given.to,
    nights = dated ? dates.between(given.from, given.to) : 0;
  const policy = h(
    "dl",
    { class: "facts" },
    [
      ["Check-in", `from ${hotel.checkIn}`],
      ["Check-out", `until ${hotel.checkOut}`],
      ["Deposit", hotel.deposit ? `${money(hotel.deposit)}, returned at check-out` : "None"],
      [
        "Pets",
        hotel.amenities.includes("Pet friendly")
          ? `Welcome for ${money(hotel.petFee)} a night`
          : "Not allowed",
      ],
      ["Lowest age", `${hotel.age} years`],
    ].flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]),
  );
  add(
    main,
    h(
      "nav",
      { class: "crumbs" },
      h("a", { href: "/" }, "Stays"),
      " › ",
      h(
        "a",
        {
          href: dated
            ? href("/search/", {
                where: hotel.city,
                from: given.from,
                to: given.to,
                guests: given.guests,
                rooms: given.rooms,
              })
            : "/",
        },
        hotel.city,
      ),
      ` › ${hotel.name}`,
    ),
    h(
      "div",
      { class: "row hotel-head" },
      h(
        "div",
        {},
        h("h1", {}, hotel.name, " ", starLine(hotel)),
        h(
          "p",
          { class: "soft" },
          icon("pin", 15),
          ` ${hotel.district}, ${hotel.city}, ${hotel.country} · ${hotel.distance.toFixed(1)} km from centre`,
        ),
      ),
      h("div", { class: "end row" }, heart(hotel), badge(hotel)),
    ),
    h("div", { class: "gallery" }, view(hotel), view(hotel, 1), view(hotel, 2)),
    tabs([
      {
        id: "rooms",
        title: "Rooms",
        panel: () =>
          h(
            "div",
            {},
            dated
              ? h(
                  "p",
                  {},
                  `${count(nights, "night")}, ${dates.brief(given.from)} to ${dates.brief(given.to)}, ${count(given.guests, "guest")}, ${count(given.rooms, "room")}`,
                )
              : h(
                  "div",
                  {},
                  h("p", { class: "notice" }, "Choose days to see prices."),
                  panel({ ...world, where: hotel.city }),
                ),
            h(
              "table",
              { class: "rooms" },
              h(
                "tr",
                {},
                ["Room", "Sleeps", "Terms", dated ? "Price for the stay" : "From, a night", ""].map((name) =>
                  h("th", {}, name),
                ),
              ),
              hotel.rooms.map((room) => {
                return h(
                  "tr",
                  { "data-room": room.type },
                  h("td", {}, h("b", {}, room.type), h("p", { class: "soft" }, room.beds)),
                  h("td", {}, `${room.guests}`),
                  h(
                    "td",
                    {},
                    h(
                      "p",
                      { class: room.refundable ? "good" : "soft" },
                      room.refundable ? "Free cancellation" : "Not refundable",
                    ),
                    h(
                      "p",
                      { class: room.breakfast ? "good" : "soft" },
                      room.breakfast ? "Breakfast included" : "Without breakfast",
                    ),
                    room.left < 3 ? h("p", { class: "low" }, `Only ${room.left} left`) : null,
                  ),
                  h(
                    "td",
                    {},
                    h(
                      "b",
                      { class: "total" },
                      money(
                        dated
                          ? stay(hotel, room, given.from, given.to, given.rooms)
                          : nightly(hotel, room, world.today),
                      ),
                    ),
                  ),
                  h(
                    "td",
                    {},
                    dated
                      ? fits(room, given.guests, given.rooms)
                        ? h(
                            "a",
                            {
                              class: "button primary",
                              href: href("/book/", {
                                id: hotel.id,
                                room: room.type,
                                from: given.from,
                                to: given.to,
                                guests: given.guests,
                                rooms: given.rooms,
                              }),
                            },
                            "Reserve",
                          )
                        : h("span", { class: "soft" }, "Too small or sold out")
                      : null,
                  ),
                );
              }),
            ),
          ),
      },
      {
        id: "about",
        title: "Facilities",
        panel: () =>
          h(
            "ul",
            { class: "amenities" },
            AMENITIES.map((one) =>
              h(
                "li",
                { class: hotel.amenities.includes(one) ? "" : "none" },
                icon(hotel.amenities.includes(one) ? "check" : "close", 16),
                one,
              ),
            ),
          ),
      },
      { id: "reviews", title: `Reviews (${hotel.reviews})`, panel: () => reviewPanel(hotel) },
      { id: "policies", title: "House rules", panel: () => policy },
      {
        id: "place",
        title: "Location",
        panel: () =>
          h(
            "div",
            {},
            cityMap([{ x: hotel.x, y: hotel.y, text: hotel.name, label: hotel.name, act() {} }], 900, 360),
            h(
              "p",
              { class: "soft" },
              `${hotel.distance.toFixed(1)} km from the centre of ${hotel.city}, in ${hotel.district}.`,
            ),
          ),
      },
    ]),
  );
  return hotel.name;
}

function reviewPanel(hotel) {
  const all = reviewsOf(hotel);
  let who = "",
    sort = "recent";
  const frame = h("div", { class: "reviews" });
  const draw = () => {
    const list = all
      .filter(({ traveller }) => !who || traveller === who)
      .sort(
        sort === "recent"
          ? (a, b) => a.age - b.age
          : sort === "high"
            ? (a, b) => b.score - a.score || a.age - b.age
            : (a, b) => a.score - b.score || a.age - b.age,
      );
    fill(
      frame,
      h(
        "div",
        { class: "scores" },
        SCORES.map((name) =>
          h(
            "div",
            {},
            h("span", {}, name),
            h("b", {}, hotel.scores[name].toFixed(1)),
            h("i", {}, h("u", { style: { width: `${hotel.scores[name] * 10}%` } })),
          ),
        ),
      ),
      h(
        "div",
        {},
        h(
          "div",
          { class: "row" },
          h("b", {}, `The latest ${list.length}`),
          h(
            "div",
            { class: "end row" },
            dropdown({
              label: "From",
              id: "traveller",
              value: who,
              options: [
                { value: "", text: "All travellers" },
                ...TRAVELLERS.map((value) => ({ value, text: value })),
              ],
              onchange: (value) => {
                who = value;
                draw();
              },
            }),
            dropdown({
              label: "Sort",
              id: "review-sort",
              value: sort,
              options: [
                ["recent", "Most recent"],
                ["high", "Highest score"],
                ["low", "Lowest score"],
              ].map(([value, text]) => ({ value, text })),
              onchange: (value) => {
                sort = value;
                draw();
              },
            }),
          ),
        ),
        list.map((one) =>
          h(
            "article",
            { class: "review" },
            h(
              "div",
              { class: "row" },
              h("b", {}, one.author),
              h(
                "span",
                { class: "soft" },
                `${one.traveller} · ${count(one.nights, "night")} · ${one.age} days ago`,
              ),
              h("i", { class: "end" }, String(one.score)),
            ),
            h("p", {}, "+ ", one.good),
            h("p", { class: "soft" }, "− ", one.poor),
          ),
        ),
      ),
    );
  };
  draw();
  return frame;
}

// ---- booking ----

function bookPage(world, main) {
  const { id, room: type } = query(),
    given = asking(world),
    hotel = world.byId.get(id),
    room = offered(world, { id, room: type, ...given });
  if (!room) {
    add(main, h("h1", {}, "This offer is gone"), h("a", { href: "/" }, "Search again"));
    return "Not found";
  }
  const nights = dates.between(given.from, given.to),
    total = stay(hotel, room, given.from, given.to, given.rooms);
  const side = h(
    "aside",
    { class: "summary" },
    view(hotel),
    h("h2", {}, hotel.name),
    h("p", {}, `${room.type}${given.rooms > 1 ? ` × ${given.rooms}` : ""}, ${room.beds}`),
    h(
      "dl",
      { class: "facts" },
      [
        ["Check-in", dates.long(given.from)],
        ["Check-out", dates.long(given.to)],
        ["Stay", `${count(nights, "night")}, ${count(given.guests, "guest")}`],
      ].flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]),
    ),
    h(
      "table",
      {},
      Array.from({ length: Math.min(nights, 7) }, (_, index) => dates.plus(given.from, index)).map((day) =>
        h(
          "tr",
          {},
          h("td", {}, dates.brief(day)),
          h("td", { class: "number" }, money(nightly(hotel, room, day) * given.rooms)),
        ),
      ),
      h("tr", {}, h("th", {}, "Total"), h("th", { class: "number" }, money(total))),
    ),
  );
  const frame = h("div", {});
  const details = {};
  const contact = () => {
    const form = h(
      "form",
      {
        class: "box",
        novalidate: true,
        onsubmit: (event) => {
          event.preventDefault();
          const values = validate(form, guestRules);
          if (values) {
            Object.assign(details, values);
            fill(frame, payment());
            scrollTo(0, 0);
          }
        },
      },
      h("h2", {}, "1. Who is coming?"),
      h(
        "div",
        { class: "form" },
        field({ label: "Full name", name: "name", wide: true, value: details.name ?? "" }),
        field({ label: "Email", name: "email", type: "email", value: details.email ?? "" }),
        field({ label: "Phone", name: "phone", value: details.phone ?? "", hint: "Digits only" }),
        field({
          label: "Time of arrival",
          name: "arrival",
          options: ARRIVALS,
          value: details.arrival,
        }),
        field({ label: "Wishes", name: "wishes", required: false, value: details.wishes ?? "" }),
      ),
      h("button", { class: "primary", "data-next": true }, "Continue to payment"),
    );
    return form;
  };
  const payment = () => {
    const pay = h("button", { class: "primary", id: "confirm" }, `Pay ${money(total)} and book`);
    const agreed = h("input", { type: "checkbox", name: "agreed" });
    const form = h(
      "form",
      {
        class: "box",
        novalidate: true,
        onsubmit: (event) => {
          event.preventDefault();
          const values = validate(form, paymentRules(world));
          if (!values) return;
          pay.disabled = true;
          request("book", () => {
            const { from, to, guests, rooms } = given;
            const offer = { id: hotel.id, room: room.type, from, to, guests, rooms };
            apply("booking.make", { ...offer, ...details, ...values });
            const [{ number, pin }] = state().bookings;
            fill(
              main,
              h(
                "section",
                { class: "box thanks" },
                icon("check", 54),
                h("h1", {}, "Your stay is booked"),
                h("p", {}, "Confirmation number: ", h("b", { id: "number" }, number)),
                h("p", {}, `PIN: ${pin}`),
                h(
                  "p",
                  {},
                  `${hotel.name}, ${dates.long(given.from)} to ${dates.long(given.to)}. We have written to ${details.email}.`,
                ),
                h("a", { class: "button", href: "/bookings/" }, "Manage booking"),
              ),
            );
            scrollTo(0, 0);
          }).catch((error) => {
            pay.disabled = false;
            toast(error.message, "error");
          });
        },
      },
      h("h2", {}, "2. Payment"),
      h(
        "p",
        { class: "soft" },
        `${details.name} · ${details.email} `,
        h("button", { type: "button", class: "plain link", onclick: () => fill(frame, contact()) }, "Change"),
      ),
      h(
        "div",
        { class: "form" },
        field({ label: "Card number", name: "card", wide: true }),
        field({ label: "Name on card", name: "holder", wide: true }),
        field({ label: "Expiry (MM/YY)", name: "expiry" }),
        field({ label: "Security code", name: "code" }),
      ),
      h(
        "div",
        { class: "field" },
        h("label", { class: "check" }, agreed, `I accept the house rules of ${hotel.name}`),
        h("small", { class: "error", role: "alert" }),
      ),
      pay,
    );
    return form;
  };
  fill(frame, contact());
  add(main, h("h1", {}, "Complete your booking"), h("div", { class: "booking" }, frame, side));
  return "Booking";
}

function savedPage(world, main) {
  const draw = () => {
    const list = state().saved.map((id) => world.byId.get(id));
    fill(
      main,
      h("h1", {}, "Saved places"),
      list.length
        ? list.map((hotel) =>
            h(
              "article",
              { class: "stay small", "data-id": hotel.id },
              h("div", { class: "shot" }, view(hotel)),
              h(
                "div",
                { class: "stay-text" },
                h("h3", {}, h("a", { href: href("/hotel/", { id: hotel.id }) }, hotel.name)),
                h("p", {}, `${hotel.district}, ${hotel.city}`),
                h(
                  "p",
                  { class: "soft" },
                  `${hotel.kind} · score ${hotel.score.toFixed(1)} · ${hotel.distance.toFixed(1)} km from centre`,
                ),
              ),
              h(
                "button",
                {
                  class: "remove",
                  onclick: () => apply("saved.remove", { id: hotel.id }),
                },
                "Remove",
              ),
            ),
          )
        : h("p", { class: "notice" }, "Nothing saved yet. Press a heart."),
    );
  };
  onChange(draw);
  draw();
  return "Saved places";
}

function bookingsPage(world, main) {
  const note = h("div", {});
  const form = h(
    "form",
    {
      class: "box",
      novalidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        const values = validate(form, findRules);
        if (!values) return;
        if (!bookingNamed(world, state(), values))
          return fill(
            note,
            h("p", { class: "notice error", role: "alert" }, "We know no booking with this number and PIN."),
          );
        fill(note);
        apply("booking.find", values);
      },
    },
    h("h2", {}, "Find a booking"),
    note,
    h(
      "div",
      { class: "form" },
      field({ label: "Confirmation number", name: "number", placeholder: "RW-123456" }),
      field({ label: "PIN", name: "pin" }),
    ),
    h("button", { class: "primary", id: "find" }, "Find booking"),
  );
  const list = h("div", {});
  const draw = () =>
    fill(
      list,
      bookingsOf(world, state())
        .filter(({ number }) => state().unlocked.includes(number))
        .map((booking) => {
          const hotel = world.byId.get(booking.hotel);
          return h(
            "article",
            { class: "box booked", "data-number": booking.number },
            h(
              "div",
              { class: "row" },
              h("h2", {}, hotel.name),
              h("span", { class: `status ${booking.status.toLowerCase()}` }, booking.status),
              h("span", { class: "soft end" }, booking.number),
            ),
            h(
              "dl",
              { class: "facts" },
              [
                ["Room", booking.room],
                ["Check-in", `${dates.long(booking.from)}, from ${hotel.checkIn}`],
                ["Check-out", `${dates.long(booking.to)}, until ${hotel.checkOut}`],
                ["Guest", booking.guest.name],
                ["Total", money(booking.total)],
              ].flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]),
            ),
            booking.status === "Cancelled"
              ? null
              : h(
                  "div",
                  { class: "row" },
                  h(
                    "button",
                    { class: "change", onclick: () => daysDialog(world, booking) },
                    icon("calendar", 16),
                    "Change days",
                  ),
                  h(
                    "button",
                    { class: "cancel", onclick: () => cancelDialog(booking, hotel) },
                    icon("close", 16),
                    "Cancel booking",
                  ),
                ),
          );
        }),
    );
  onChange(draw);
  draw();
  add(main, h("h1", {}, "Manage booking"), list, form);
  return "Manage booking";
}

function daysDialog(world, booking) {
  const given = { from: booking.from, to: booking.to };
  const told = h("p", {}),
    error = h("p", { class: "error", role: "alert" });
  const draw = () => {
    told.textContent = given.from < given.to ? `New total: ${money(totalOf(world, booking, given))}` : "";
  };
  const picker = (name, label) =>
    datePicker({
      label,
      name,
      value: given[name],
      min: world.today,
      max: lastDay(world),
      onpick: (day) => {
        given[name] = day;
        draw();
      },
    });
  draw();
  modal({
    title: "Change days",
    wide: true,
    body: h(
      "form",
      { class: "tall form", onsubmit: (event) => event.preventDefault() },
      picker("from", "Check-in"),
      picker("to", "Check-out"),
      h("div", { class: "wide" }, told, error),
    ),
    actions: [
      { text: "Keep as it is", act() {} },
      {
        text: "Save new days",
        primary: true,
        act: () => {
          error.textContent = daysProblem(world, given);
          if (error.textContent) return false;
          apply("booking.move", { number: booking.number, ...given });
          toast("Your booking is changed.");
        },
      },
    ],
  });
}

function cancelDialog(booking, hotel) {
  const form = h(
    "form",
    { onsubmit: (event) => event.preventDefault() },
    h("p", {}, `${hotel.name}, ${dates.long(booking.from)} to ${dates.long(booking.to)}`),
    h(
      "div",
      { class: "field" },
      h("span", {}, "Why do you cancel?"),
      REASONS.map((reason) =>
        h("label", { class: "check" }, h("input", { type: "radio", name: "reason", value: reason }), reason),
      ),
      h("small", { class: "error", role: "alert" }),
    ),
  );
  modal({
    title: "Cancel this booking?",
    body: form,
    actions: [
      { text: "Keep booking", act() {} },
      {
        text: "Cancel booking",
        primary: true,
        act: () => {
          const values = validate(form, cancelRules);
          if (!values) return false;
          apply("booking.cancel", { number: booking.number, ...values });
          toast("The booking is cancelled.");
        },
      },
    ],
  });
}
