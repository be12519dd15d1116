// The flight search's pages.

import { visit } from "/kit/address.js";
import { add, count, fill, grouped, h, icon, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { change, href, onChange, query, site, state } from "/kit/site.js";
import {
  autocomplete,
  cookieBanner,
  datePicker,
  dropdown,
  chooser,
  facts,
  field,
  modal,
  radios,
  rules,
  ticks,
  toast,
  validate,
} from "/kit/ui.js";
import {
  AIRLINES,
  BAG_PRICE,
  CABINS,
  CITIES,
  FARES,
  HORIZON,
  NAME,
  REASONS,
  WINDOWS,
  airline,
  board,
  city,
  cityNamed,
  clock,
  deals,
  fare,
  flightOf,
  freshState,
  lasting,
  lowest,
  makeWorld,
  priceIn,
  search,
  takenSeats,
} from "/world.js";
import { checkoutPage } from "/checkout.js";
import { mark, sunrise, vista } from "/pictures.js";
import { seatMap } from "/seats.js";

const PAGES = {
  "": homePage,
  search: searchPage,
  trip: tripPage,
  checkout: checkoutPage,
  manage: managePage,
  status: statusPage,
  alerts: alertsPage,
};
const SORTS = [
  ["price", "Cheapest"],
  ["duration", "Shortest"],
  ["departure", "Earliest departure"],
  ["arrival", "Earliest arrival"],
  ["carbon", "Lowest emissions"],
];
const money = (dollars) => `$${grouped(dollars)}`;

site({
  name: "flights",
  world: makeWorld,
  state: freshState,
  show(world) {
    const main = h("main", {});
    document.body.append(
      header(),
      main,
      h(
        "footer",
        { class: "bottom" },
        h("b", {}, NAME),
        h("p", {}, "Prices are in US dollars with taxes. All airports keep the same time."),
      ),
    );
    const page = PAGES[location.pathname.split("/")[1]] ?? homePage;
    document.title = `${page(world, main) ?? NAME} | ${NAME}`;
    cookieBanner({
      name: NAME,
      text: "Cookies keep your search and your price alerts. Others help us to see which routes are wanted.",
    });
  },
});

function header() {
  const link = (path, id, text) =>
    h("a", { href: path, id, "aria-current": location.pathname === path ? "page" : null }, text);
  return h(
    "header",
    { class: "top" },
    h("a", { class: "logo", href: "/" }, mark(), h("span", {}, "wing", h("b", {}, "fare"))),
    h(
      "nav",
      {},
      link("/", "flights", "Flights"),
      link("/manage/", "manage", "My trips"),
      link("/status/", "status", "Departures"),
      link("/alerts/", "alerts", "Price alerts"),
    ),
  );
}

/** The search that the address holds. */
function given() {
  const {
    from = "",
    to = "",
    depart = "",
    back = "",
    trip = "round",
    adults = "1",
    children = "0",
    cabin = "economy",
    out = "",
  } = query();
  return {
    from,
    to,
    depart,
    back,
    trip,
    adults: Number(adults) || 1,
    children: Number(children) || 0,
    cabin,
    out,
  };
}
const travellers = ({ adults, children }) =>
  [count(adults, "adult"), children ? count(children, "child", "children") : null].filter(Boolean).join(", ");

/** The search form of the first page and above the results. */
function searchForm(world) {
  const now = given(),
    error = h("p", { class: "error", role: "alert" });
  const place = (name, label) => {
    const input = h("input", {
      type: "text",
      name,
      value: city(now[name]) ? `${city(now[name]).name} (${now[name]})` : "",
      placeholder: "City or airport",
      "aria-label": label,
    });
    return { input, frame: h("div", { class: "field" }, h("label", {}, label), input) };
  };
  const from = place("from", "From"),
    to = place("to", "To");
  for (const { input } of [from, to]) {
    autocomplete(input, (text) => {
      const wanted = tidy(text).toLowerCase();
      return wanted
        ? CITIES.filter(({ name, code, country }) =>
            `${name} ${code} ${country}`.toLowerCase().includes(wanted),
          )
            .slice(0, 6)
            .map(({ name, code, country }) => ({
              text: `${name} (${code})`,
              detail: country,
              act: () => {
                input.value = `${name} (${code})`;
              },
            }))
        : [];
    });
  }
  const swap = h(
    "button",
    {
      type: "button",
      class: "swap",
      "aria-label": "Swap places",
      onclick: () => {
        [from.input.value, to.input.value] = [to.input.value, from.input.value];
      },
    },
    "⇄",
  );
  const last = dates.plus(world.today, HORIZON);
  const picker = (name, label) =>
    datePicker({
      label,
      name,
      value: now[name],
      shown: now[name] || now.depart || world.today,
      min: world.today,
      max: last,
      onpick: (day) => {
        now[name] = day;
      },
      format: dates.brief,
    });
  const days = h("div", { class: "days" });
  const drawDays = () =>
    fill(
      days,
      picker("depart", "Depart"),
      now.trip === "round"
        ? picker("back", "Return")
        : h(
            "div",
            { class: "field one-way" },
            h("label", {}, "Return"),
            h("span", { class: "soft" }, "One way"),
          ),
    );
  drawDays();
  const cabin = h(
    "select",
    {
      name: "cabin",
      "aria-label": "Cabin",
      onchange: () => {
        now.cabin = cabin.value;
      },
    },
    CABINS.map(({ id, name }) => h("option", { value: id, selected: id === now.cabin }, name)),
  );
  const submit = (event) => {
    event.preventDefault();
    const [start, end] = [from, to].map(({ input }) => cityNamed(tidy(input.value)));
    error.textContent = !start
      ? "Choose where you fly from"
      : !end
        ? "Choose where you fly to"
        : start === end
          ? "Choose two different places"
          : !now.depart
            ? "Choose the day of departure"
            : now.trip === "round" && !now.back
              ? "Choose the day of return"
              : now.trip === "round" && now.back < now.depart
                ? "The return is before the departure"
                : "";
    if (!error.textContent)
      visit(
        href("/search/", {
          trip: now.trip,
          from: start.code,
          to: end.code,
          depart: now.depart,
          back: now.trip === "round" ? now.back : "",
          adults: now.adults,
          children: now.children || "",
          cabin: now.cabin,
        }),
      );
  };
  return h(
    "form",
    { class: "finder", novalidate: true, onsubmit: submit },
    h(
      "div",
      { class: "row kinds" },
      radios({
        title: "Trip",
        name: "trip",
        value: now.trip,
        options: [
          { value: "round", text: "Round trip" },
          { value: "one", text: "One way" },
        ],
        onchange: (trip) => {
          now.trip = trip;
          drawDays();
        },
      }),
      cabin,
    ),
    h(
      "div",
      { class: "finder-row" },
      from.frame,
      swap,
      to.frame,
      days,
      peopleField(now),
      h("button", { class: "primary", id: "search" }, icon("search", 18), "Search"),
    ),
    error,
  );
}

function peopleField(now) {
  const button = h("button", {
    type: "button",
    id: "people",
    "aria-haspopup": "dialog",
    onclick: () => {
      pane.hidden = !pane.hidden;
    },
  });
  const pane = h("div", { class: "people-pane", hidden: true });
  const step = (key, by) => {
    now[key] += by;
    draw();
  };
  const line = (key, label, note, least) =>
    h(
      "div",
      { class: "row" },
      h("span", {}, h("b", {}, label), h("small", { class: "soft" }, note)),
      h(
        "span",
        { class: "stepper end" },
        h(
          "button",
          {
            type: "button",
            "aria-label": `Fewer ${key}`,
            disabled: now[key] <= least,
            onclick: () => step(key, -1),
          },
          icon("minus", 15),
        ),
        h("b", {}, String(now[key])),
        h(
          "button",
          {
            type: "button",
            "aria-label": `More ${key}`,
            disabled: now.adults + now.children >= 6,
            onclick: () => step(key, 1),
          },
          icon("plus", 15),
        ),
      ),
    );
  const draw = () => {
    button.textContent = travellers(now);
    fill(
      pane,
      line("adults", "Adults", "12 and older", 1),
      line("children", "Children", "2 to 11", 0),
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
  draw();
  return h("div", { class: "field people" }, h("label", {}, "Travellers"), button, pane);
}

const badge = (name) =>
  h("span", { class: "badge", style: { "--hue": airline(name).hue } }, airline(name).code);

// ---- finding ----

function homePage(world, main) {
  add(
    main,
    h(
      "section",
      { class: "hero" },
      sunrise(),
      h(
        "div",
        { class: "hero-text" },
        h("h1", {}, "The whole sky, one search."),
        h("p", {}, `${AIRLINES.length} airlines, ${CITIES.length} airports, every fare.`),
      ),
      searchForm(world),
    ),
    h(
      "section",
      {},
      h("h2", {}, `Leaving from ${deals(world)[0].from.name}`),
      h(
        "div",
        { class: "deals" },
        deals(world).map(({ from, to, day, price }) =>
          h(
            "a",
            {
              class: "deal",
              href: href("/search/", { trip: "one", from: from.code, to: to.code, depart: day }),
            },
            vista(to),
            h("span", {}, h("b", {}, to.name), h("small", {}, `${to.country} · ${dates.brief(day)}`)),
            h("strong", {}, "from ", money(price)),
          ),
        ),
      ),
    ),
    h(
      "section",
      { class: "promises" },
      [
        ["wifi", "Live prices", "What you see is what you pay, taxes and all."],
        ["clock", "Hold your nerve", "Set a price alert and we watch the route for you."],
        ["check", "Change of plan?", "Manage every trip in one place, whichever airline flies it."],
      ].map(([sign, title, text]) =>
        h("div", {}, icon(sign, 26), h("h3", {}, title), h("p", { class: "soft" }, text)),
      ),
    ),
  );
  return "Flights";
}

function searchPage(world, main) {
  const asked = query(),
    now = given();
  if (!city(now.from) || !city(now.to) || !now.depart) {
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
  return h(
    "div",
    { class: "strip", role: "group", "aria-label": "Prices of nearby days" },
    Array.from({ length: 7 }, (_, at) => dates.plus(first, at)).map((day) =>
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

/** The legs of a flight with the waits between them. */
function legTable(flight) {
  const wait = (at) => {
    const next = flight.legs[at + 1];
    return next
      ? h(
          "p",
          { class: "wait" },
          `Change in ${city(next.from).name}: ${lasting(next.depart - flight.legs[at].arrive)}`,
        )
      : null;
  };
  return flight.legs.map((leg, at) => [
    h(
      "p",
      { class: "leg" },
      h("b", {}, `${clock(leg.depart)} ${city(leg.from).name}`),
      " → ",
      h("b", {}, `${clock(leg.arrive)} ${city(leg.to).name}`),
      h("span", { class: "soft" }, ` ${leg.number} · ${leg.plane} · ${lasting(leg.arrive - leg.depart)}`),
    ),
    wait(at),
  ]);
}

function alertButton(now) {
  const wanted = {
    from: now.from,
    to: now.to,
    depart: now.depart,
    back: now.trip === "round" ? now.back : "",
  };
  const is = (alert) => Object.keys(wanted).every((key) => alert[key] === wanted[key]);
  const box = h("input", {
    type: "checkbox",
    id: "track",
    onchange: () =>
      change((state) => {
        state.alerts = box.checked ? [...state.alerts, wanted] : state.alerts.filter((alert) => !is(alert));
      }),
  });
  const draw = () => {
    box.checked = state().alerts.some(is);
  };
  onChange(draw);
  draw();
  return h("label", { class: "check track end" }, box, "Track prices");
}

// ---- one trip ----

function tripPage(world, main) {
  const asked = query(),
    flights = [asked.out, asked.back].map((id) => flightOf(world, id)).filter(Boolean),
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
    h("p", { class: "soft" }, `${travellers(now)}, ${CABINS.find(({ id }) => id === now.cabin)?.name}`),
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

// ---- trips, departures, alerts ----

function managePage(world, main) {
  const known = () => [
    ...state().bookings,
    ...[world.booked, world.soon].map((booking) => ({ ...booking, ...state().changes[booking.reference] })),
  ];
  const edit = (reference, changes) =>
    change((now) => {
      const own = now.bookings.find((one) => one.reference === reference);
      if (own) Object.assign(own, changes);
      else now.changes[reference] = { ...now.changes[reference], ...changes };
    });
  const note = h("div", {}),
    list = h("div", {});
  const form = h(
    "form",
    {
      class: "box find-trip",
      novalidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        const values = validate(form, {
          reference: rules.filled("the booking reference"),
          surname: rules.filled("the last name"),
        });
        if (!values) return;
        const booking = known().find(
          ({ reference, surname }) =>
            reference === values.reference.toUpperCase() &&
            surname.toLowerCase() === values.surname.toLowerCase(),
        );
        fill(
          note,
          booking
            ? null
            : h(
                "p",
                { class: "notice error", role: "alert" },
                "We find no booking with this reference and last name.",
              ),
        );
        if (booking)
          change((now) => {
            if (!now.unlocked.includes(booking.reference)) now.unlocked.push(booking.reference);
          });
      },
    },
    h("h2", {}, "Find a trip"),
    note,
    h(
      "div",
      { class: "form" },
      field({ label: "Booking reference", name: "reference", placeholder: "Six letters and digits" }),
      field({ label: "Last name", name: "surname" }),
    ),
    h("button", { class: "primary", id: "find" }, "Find trip"),
  );
  const draw = () =>
    fill(
      list,
      known()
        .filter(({ reference }) => state().unlocked.includes(reference))
        .map((booking) => tripCard(world, booking, edit)),
    );
  onChange(draw);
  draw();
  add(main, h("h1", {}, "My trips"), list, form);
  return "My trips";
}

function tripCard(world, booking, edit) {
  const flights = booking.flights.map((id) => flightOf(world, id)),
    first = flights[0];
  const soon = dates.between(world.today, first.day) <= 1;
  return h(
    "article",
    { class: "box trip", "data-reference": booking.reference },
    h(
      "div",
      { class: "row" },
      h("h2", {}, `${city(first.from).name} to ${city(first.to).name}`),
      h("span", { class: `status ${booking.status.toLowerCase()}` }, booking.status),
      h("b", { class: "end code" }, booking.reference),
    ),
    flights.map((flight) =>
      h(
        "p",
        { class: "row" },
        badge(flight.airline),
        h("b", {}, `${dates.long(flight.day)}, ${clock(flight.depart)} to ${clock(flight.arrive)}`),
        h("span", { class: "soft" }, flight.legs.map(({ number }) => number).join(", ")),
      ),
    ),
    facts([
      ["Travellers", booking.passengers.join(", ")],
      [
        "Seats",
        flights
          .map((flight) => (booking.seats[flight.id] ?? []).filter(Boolean).join(", ") || "None")
          .join(" / "),
      ],
      ["Checked bags", String(booking.bags)],
      ["Fare", fare(booking.fare).name],
      ["Total", money(booking.total)],
      booking.checkedIn ? ["Check-in", `Done, meal: ${booking.meal}`] : null,
    ]),
    booking.status === "Cancelled"
      ? null
      : h(
          "div",
          { class: "row actions" },
          h(
            "button",
            { class: "seat-button", onclick: () => seatDialog(world, booking, flights, edit) },
            "Change seat",
          ),
          h("button", { class: "bag-button", onclick: () => bagDialog(booking, edit) }, "Add bags"),
          h(
            "button",
            {
              class: "check-in",
              disabled: !soon || booking.checkedIn,
              onclick: () => checkInDialog(booking, edit),
            },
            "Check in",
          ),
          h("button", { class: "cancel", onclick: () => cancelDialog(booking, edit) }, "Cancel trip"),
        ),
    soon ? null : h("p", { class: "soft" }, "Check-in opens the day before departure."),
  );
}

function seatDialog(world, booking, flights, edit) {
  const [flight] = flights,
    seats = [...(booking.seats[flight.id] ?? [])];
  const map = seatMap({
    taken: takenSeats(world, flight.id),
    names: booking.passengers,
    seats,
    fareId: booking.fare,
  });
  modal({
    title: `Seats, ${city(flight.from).name} to ${city(flight.to).name}`,
    wide: true,
    body: map,
    actions: [
      { text: "Keep as it is", act() {} },
      {
        text: "Save seat",
        primary: true,
        act: () => {
          edit(booking.reference, { seats: { ...booking.seats, [flight.id]: seats } });
          toast("Your seat is changed.");
        },
      },
    ],
  });
}

function bagDialog(booking, edit) {
  let bags = booking.bags;
  const told = h("p", {}),
    shown = h("b", {});
  const draw = () => {
    shown.textContent = String(bags);
    told.textContent =
      bags > booking.bags
        ? `To pay: ${money((bags - booking.bags) * BAG_PRICE * booking.flights.length)}`
        : "Nothing to pay";
  };
  const step = (by) => {
    bags = Math.min(5, Math.max(booking.bags, bags + by));
    draw();
  };
  draw();
  modal({
    title: "Add checked bags",
    body: h(
      "div",
      {},
      h(
        "p",
        { class: "row" },
        "Checked bags",
        h(
          "span",
          { class: "stepper end" },
          h("button", { "aria-label": "Fewer bags", onclick: () => step(-1) }, icon("minus", 15)),
          shown,
          h("button", { "aria-label": "More bags", onclick: () => step(1) }, icon("plus", 15)),
        ),
      ),
      h("p", { class: "soft" }, `${money(BAG_PRICE)} a bag and flight, up to 23 kg.`),
      told,
    ),
    actions: [
      { text: "Back", act() {} },
      {
        text: "Add and pay",
        primary: true,
        act: () => {
          edit(booking.reference, {
            bags,
            total: booking.total + (bags - booking.bags) * BAG_PRICE * booking.flights.length,
          });
          toast("Your bags are booked.");
        },
      },
    ],
  });
}

function checkInDialog(booking, edit) {
  const form = h(
    "form",
    { onsubmit: (event) => event.preventDefault() },
    h(
      "div",
      { class: "form" },
      field({ label: "Passport number", name: "passport", wide: true }),
      field({
        label: "Meal",
        name: "meal",
        options: ["Standard", "Vegetarian", "Vegan", "Gluten free", "None"],
        wide: true,
      }),
    ),
    h(
      "div",
      { class: "field" },
      h(
        "label",
        { class: "check" },
        h("input", { type: "checkbox", name: "goods" }),
        "I carry no dangerous goods",
      ),
      h("small", { class: "error", role: "alert" }),
    ),
  );
  modal({
    title: `Check in ${booking.passengers[0]}`,
    body: form,
    actions: [
      { text: "Later", act() {} },
      {
        text: "Check in",
        primary: true,
        act: () => {
          const values = validate(form, {
            passport: (value) => (/^[A-Z]\d{7}$/i.test(value) ? "" : "Enter one letter and seven digits"),
            goods: (value) => (value ? "" : "Please confirm"),
          });
          if (!values) return false;
          edit(booking.reference, {
            checkedIn: true,
            passport: values.passport.toUpperCase(),
            meal: values.meal,
          });
          toast("You are checked in.");
        },
      },
    ],
  });
}

function cancelDialog(booking, edit) {
  const form = h(
    "form",
    { onsubmit: (event) => event.preventDefault() },
    h(
      "p",
      {},
      fare(booking.fare).id === "flex" ? "You get the whole price back." : "This fare is not refunded.",
    ),
    h(
      "div",
      { class: "field" },
      radios({ title: "Why do you cancel?", name: "reason", value: "", options: REASONS }),
      h("small", { class: "error", role: "alert" }),
    ),
  );
  modal({
    title: "Cancel this trip?",
    body: form,
    actions: [
      { text: "Keep trip", act() {} },
      {
        text: "Cancel trip",
        primary: true,
        act: () => {
          const values = validate(form, { reason: (value) => (value ? "" : "Choose a reason") });
          if (!values) return false;
          edit(booking.reference, { status: "Cancelled", reason: values.reason });
          toast("The trip is cancelled.");
        },
      },
    ],
  });
}

function statusPage(world, main) {
  const { at = CITIES[0].code, number = "" } = query(),
    place = city(at) ?? CITIES[0];
  const rows = board(world, place.code).filter(
    (row) =>
      !number || row.number.replace(" ", "").toLowerCase().includes(number.replace(" ", "").toLowerCase()),
  );
  const input = h("input", {
    type: "text",
    name: "number",
    value: number,
    placeholder: "Flight number",
    "aria-label": "Flight number",
  });
  add(
    main,
    h(
      "div",
      { class: "row" },
      h(
        "div",
        {},
        h("h1", {}, "Departures"),
        h("p", { class: "soft" }, `${place.name} (${place.code}), ${dates.long(world.today)}`),
      ),
      h(
        "div",
        { class: "end row" },
        h(
          "form",
          {
            class: "row",
            onsubmit: (event) => {
              event.preventDefault();
              visit(href("/status/", { at: place.code, number: tidy(input.value) }));
            },
          },
          input,
          h("button", {}, "Find"),
        ),
        dropdown({
          label: "Airport",
          id: "airport",
          value: place.code,
          options: CITIES.map(({ code, name }) => ({ value: code, text: name })),
          onchange: (code) => visit(href("/status/", { at: code })),
        }),
      ),
    ),
    h(
      "table",
      { class: "board" },
      h(
        "tr",
        {},
        ["Time", "Flight", "Airline", "To", "Gate", "Status"].map((name) => h("th", {}, name)),
      ),
      rows.map((row) =>
        h(
          "tr",
          { "data-number": row.number },
          h("td", {}, h("b", {}, clock(row.time))),
          h("td", {}, row.number),
          h("td", {}, row.airline),
          h("td", {}, row.to),
          h("td", {}, h("i", { class: "gate" }, row.gate)),
          h(
            "td",
            { class: row.status.toLowerCase().replace(" ", "-") },
            row.status === "Delayed" ? `Delayed, ${clock(row.expected)}` : row.status,
          ),
        ),
      ),
    ),
    rows.length ? null : h("p", { class: "notice" }, "No such flight leaves here today."),
  );
  return "Departures";
}

function alertsPage(world, main) {
  const draw = () => {
    const { alerts } = state();
    fill(
      main,
      h("h1", {}, "Price alerts"),
      alerts.length
        ? alerts.map((alert, at) =>
            h(
              "article",
              { class: "box row alert" },
              h(
                "div",
                {},
                h("h2", {}, `${city(alert.from).name} to ${city(alert.to).name}`),
                h(
                  "p",
                  { class: "soft" },
                  `${dates.long(alert.depart)}${alert.back ? ` to ${dates.long(alert.back)}` : ", one way"}`,
                ),
              ),
              h("b", { class: "end" }, `from ${money(lowest(world, alert.from, alert.to, alert.depart))}`),
              h(
                "button",
                {
                  class: "remove",
                  onclick: () =>
                    change((now) => {
                      now.alerts.splice(at, 1);
                    }),
                },
                "Remove",
              ),
            ),
          )
        : h("p", { class: "notice" }, "No alerts yet. Search a route and switch on “Track prices”."),
    );
  };
  onChange(draw);
  draw();
  return "Price alerts";
}
