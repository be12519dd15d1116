// What a search has found, and the trip that is made of it.

import { visit } from "/kit/address.js";
import { add, count, h, icon } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { apply, href, onChange, query, state } from "/kit/site.js";
import { chooser, radios, ticks } from "/kit/ui.js";
import { given, searchForm, travellers } from "/finder.js";
import { badge, legTable, money } from "/parts.js";
import { isSameAlert } from "/transitions.js";
import {
  AIRLINES,
  FARES,
  WINDOWS,
  cabinOf,
  city,
  clock,
  flightOf,
  isBookable,
  lasting,
  lowest,
  priceIn,
  search,
  tripFlights,
} from "/world.js";

const SORTS = [
  ["price", "Cheapest"],
  ["duration", "Shortest"],
  ["departure", "Earliest departure"],
  ["arrival", "Earliest arrival"],
  ["carbon", "Lowest emissions"],
];

export function searchPage(world, main) {
  const asked = query(),
    now = given();
  const isSearch =
    city(now.from) &&
    city(now.to) &&
    now.from !== now.to &&
    isBookable(world, now.depart) &&
    (now.trip !== "round" || (isBookable(world, now.back) && now.back >= now.depart));
  if (!isSearch) {
    add(main, searchForm(world), h("p", { class: "notice" }, "Say where and when."));
    return "Search";
  }
  const chosen = flightOf(world, now.out),
    way = chosen
      ? { from: now.to, to: now.from, day: now.back }
      : { from: now.from, to: now.to, day: now.depart };
  const list = (text) => (text ? text.split("|") : []);
  const filters = {
    stops: asked.stops ?? "",
    airlines: list(asked.airlines),
    windows: list(asked.windows),
    max: Number(asked.max) || 0,
    bag: asked.bag === "1",
    sort: asked.sort ?? "price",
  };
  const found = search(world, { ...way, cabin: now.cabin, ...filters });
  const go = (changes) => visit(href("/search/", { ...asked, ...changes }));
  const pick = (flight) => {
    if (now.trip === "round" && !chosen)
      go({ out: flight.id, stops: "", airlines: "", windows: "", max: "", bag: "", sort: "" });
    else
      visit(
        href("/trip/", {
          out: chosen ? chosen.id : flight.id,
          back: chosen ? flight.id : "",
          adults: now.adults,
          children: now.children || "",
          cabin: now.cabin,
        }),
      );
  };
  const title =
    now.trip === "round"
      ? chosen
        ? "Choose your return flight"
        : "Choose your outbound flight"
      : "Choose your flight";
  add(
    main,
    searchForm(world),
    h(
      "div",
      { class: "row result-head" },
      h(
        "div",
        {},
        h("h1", {}, `${city(way.from).name} to ${city(way.to).name}`),
        h("p", { class: "soft" }, `${title} · ${dates.long(way.day)} · ${travellers(now)}`),
      ),
      alertButton(now),
    ),
    chosen
      ? h(
          "div",
          { class: "outbound" },
          badge(chosen.airline),
          h("b", {}, "Outbound"),
          h(
            "span",
            {},
            `${dates.brief(chosen.day)}, ${clock(chosen.depart)} to ${clock(chosen.arrive)}, ${chosen.airline}`,
          ),
          h("b", { class: "end" }, money(priceIn(chosen, now.cabin))),
          h("a", { href: href("/search/", { ...asked, out: "" }) }, "Change"),
        )
      : null,
    dayStrip(world, way, now, (day) => go(chosen ? { back: day } : { depart: day })),
    h(
      "div",
      { class: "results" },
      filterPane(world, way, now, filters, go),
      h(
        "div",
        {},
        h(
          "div",
          { class: "row list-head" },
          h("b", { id: "found" }, count(found.length, "flight")),
          h(
            "div",
            { class: "end" },
            chooser("Sort by", "sort", filters.sort, SORTS, (sort) => go({ sort })),
          ),
        ),
        found.length
          ? found.map((flight) => flightCard(flight, now, pick))
          : h("p", { class: "notice" }, "No flight fits. Take a filter away."),
      ),
    ),
  );
  return title;
}

/** Seven days around the one shown, each with its lowest price. */
function dayStrip(world, way, now, onpick) {
  const first = dates.between(world.today, way.day) < 3 ? world.today : dates.plus(way.day, -3);
  const days = Array.from({ length: 7 }, (_, at) => dates.plus(first, at)).filter((day) =>
    isBookable(world, day),
  );
  return h(
    "div",
    { class: "strip", role: "group", "aria-label": "Prices of nearby days" },
    days.map((day) =>
      h(
        "button",
        {
          type: "button",
          "data-day": day,
          "aria-pressed": String(day === way.day),
          onclick: () => onpick(day),
        },
        h("span", {}, dates.brief(day)),
        h("b", {}, money(lowest(world, way.from, way.to, day, now.cabin))),
      ),
    ),
  );
}

function filterPane(world, way, now, filters, go) {
  const max = h("input", {
    type: "text",
    name: "max",
    value: filters.max || "",
    placeholder: "Any",
    "aria-label": "Highest price",
  });
  const prices = search(world, { ...way, cabin: now.cabin });
  const from = (name) => {
    const own = prices.find((flight) => flight.airline === name);
    return own ? `${name} (${money(priceIn(own, now.cabin))})` : `${name} (none)`;
  };
  return h(
    "aside",
    { class: "filters" },
    h("h2", {}, "Filters"),
    radios({
      title: "Stops",
      name: "stops",
      value: filters.stops,
      options: [
        { value: "", text: "Any" },
        { value: "0", text: "Nonstop only" },
        { value: "1", text: "At most 1 stop" },
      ],
      onchange: (stops) => go({ stops }),
    }),
    ticks({
      title: "Departure",
      name: "windows",
      chosen: filters.windows,
      options: WINDOWS.map(([value, text]) => ({ value, text })),
      onchange: (values) => go({ windows: values.join("|") }),
    }),
    ticks({
      title: "Airlines",
      name: "airlines",
      chosen: filters.airlines,
      options: AIRLINES.map(({ name }) => ({ value: name, text: from(name) })),
      onchange: (values) => go({ airlines: values.join("|") }),
    }),
    h(
      "fieldset",
      { class: "choices" },
      h("legend", {}, "Price up to"),
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
    ticks({
      title: "Bags",
      name: "bag",
      chosen: filters.bag ? ["1"] : [],
      options: [{ value: "1", text: "Checked bag included" }],
      onchange: (values) => go({ bag: values[0] ?? "" }),
    }),
    h(
      "button",
      { class: "plain link", onclick: () => go({ stops: "", airlines: "", windows: "", max: "", bag: "" }) },
      "Clear filters",
    ),
  );
}

function flightCard(flight, now, pick) {
  const more = h("div", { class: "legs", hidden: true }, legTable(flight));
  const next = Math.floor(flight.arrive / 1440);
  return h(
    "article",
    { class: "flight", "data-id": flight.id },
    h(
      "div",
      { class: "flight-row" },
      badge(flight.airline),
      h("div", { class: "who" }, h("b", {}, flight.airline), h("small", { class: "soft" }, flight.number)),
      h("div", { class: "times" }, h("b", {}, clock(flight.depart)), h("small", {}, flight.from)),
      h(
        "div",
        { class: "line" },
        h("small", {}, lasting(flight.minutes)),
        h(
          "i",
          {},
          flight.legs.slice(1).map(() => h("u", {})),
        ),
        h(
          "small",
          { class: flight.stops ? "via" : "nonstop" },
          flight.stops
            ? `${count(flight.stops, "stop")} · ${flight.legs
                .slice(1)
                .map(({ from }) => from)
                .join(", ")}`
            : "Nonstop",
        ),
      ),
      h(
        "div",
        { class: "times" },
        h("b", {}, clock(flight.arrive), next ? h("sup", {}, `+${next}`) : null),
        h("small", {}, flight.to),
      ),
      h(
        "div",
        { class: "price" },
        h("b", {}, money(priceIn(flight, now.cabin))),
        h("small", { class: "soft" }, "per traveller"),
      ),
      h("button", { class: "primary", onclick: () => pick(flight) }, "Select"),
    ),
    h(
      "div",
      { class: "flight-foot" },
      h("span", {}, flight.bag ? "Checked bag included" : "Cabin bag only"),
      h("span", {}, `${flight.carbon} kg CO₂`),
      flight.left < 6 ? h("span", { class: "low" }, `${flight.left} left at this price`) : null,
      h(
        "button",
        {
          class: "plain link end",
          onclick: () => {
            more.hidden = !more.hidden;
          },
        },
        "Details",
      ),
    ),
    more,
  );
}

function alertButton(now) {
  const wanted = {
    from: now.from,
    to: now.to,
    depart: now.depart,
    back: now.trip === "round" ? now.back : "",
  };
  const box = h("input", {
    type: "checkbox",
    id: "track",
    onchange: () => apply(box.checked ? "alerts.add" : "alerts.remove", wanted),
  });
  const draw = () => {
    box.checked = state().alerts.some((alert) => isSameAlert(alert, wanted));
  };
  onChange(draw);
  draw();
  return h("label", { class: "check track end" }, box, "Track prices");
}

export function tripPage(world, main) {
  const asked = query(),
    flights = tripFlights(world, asked),
    now = given();
  if (!flights.length) {
    add(main, h("h1", {}, "This flight is gone"), h("a", { href: "/" }, "Search again"));
    return "Not found";
  }
  const people = now.adults + now.children,
    sum = (extra) =>
      flights.reduce((total, flight) => total + (priceIn(flight, now.cabin) + extra) * people, 0);
  add(
    main,
    h("h1", {}, "Your trip"),
    flights.map((flight, at) =>
      h(
        "section",
        { class: "box" },
        h(
          "div",
          { class: "row" },
          badge(flight.airline),
          h("h2", {}, `${at ? "Return" : "Outbound"}: ${city(flight.from).name} to ${city(flight.to).name}`),
          h("span", { class: "end soft" }, `${dates.long(flight.day)} · ${lasting(flight.minutes)}`),
        ),
        legTable(flight),
      ),
    ),
    h("h2", {}, "Choose a fare"),
    h("p", { class: "soft" }, `${travellers(now)}, ${cabinOf(now.cabin).name}`),
    h(
      "div",
      { class: "fares" },
      FARES.map((one) =>
        h(
          "article",
          { class: `fare ${one.id}` },
          h("h3", {}, one.name),
          h(
            "ul",
            {},
            one.points.map((point) => h("li", {}, icon("check", 15), point)),
          ),
          h("b", { class: "fare-price" }, money(sum(one.extra))),
          h("small", { class: "soft" }, "for all travellers"),
          h(
            "a",
            { class: "button primary", href: href("/checkout/", { ...asked, fare: one.id }) },
            `Choose ${one.name}`,
          ),
        ),
      ),
    ),
  );
  return "Your trip";
}
