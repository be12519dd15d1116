// The search form of the first page and above the results, and the search that the address holds.

import { visit } from "/kit/address.js";
import { count, fill, h, icon, tidy } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { href, query } from "/kit/site.js";
import { autocomplete, datePicker, radios } from "/kit/ui.js";
import { CABINS, CITIES, HORIZON, MOST_TRAVELLERS, cabinOf, city, cityNamed, partyOf } from "/world.js";

/** The search that the address holds. */
export function given() {
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
    ...partyOf({ adults, children }),
    cabin: cabinOf(cabin).id,
    out,
  };
}
export const travellers = ({ adults, children }) =>
  [count(adults, "adult"), children ? count(children, "child", "children") : null].filter(Boolean).join(", ");

/** The search form of the first page and above the results. */
export function searchForm(world) {
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
            disabled: now.adults + now.children >= MOST_TRAVELLERS,
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
