// The flight search's pages.

import { visit } from "/kit/address.js";
import { add, fill, h, icon, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { apply, href, onChange, query, site, state } from "/kit/site.js";
import { cookieBanner, dropdown } from "/kit/ui.js";
import { checkoutPage } from "/checkout.js";
import { searchForm } from "/finder.js";
import { money } from "/parts.js";
import { mark, sunrise, vista } from "/pictures.js";
import { searchPage, tripPage } from "/results.js";
import { transitions } from "/transitions.js";
import { managePage } from "/trips.js";
import { AIRLINES, CITIES, NAME, board, city, clock, deals, freshState, lowest, makeWorld } from "/world.js";

const PAGES = {
  "": homePage,
  search: searchPage,
  trip: tripPage,
  checkout: checkoutPage,
  manage: managePage,
  status: statusPage,
  alerts: alertsPage,
};
site({
  name: "flights",
  world: makeWorld,
  state: freshState,
  transitions,
  harmless: ["cookies", "unlocked"],
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
        ? alerts.map((alert) =>
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
                  onclick: () => apply("alerts.remove", alert),
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
