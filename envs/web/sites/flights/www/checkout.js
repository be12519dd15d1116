// Checkout of a trip: travellers, seats, bags, payment. Each step is checked before the next opens; the last one books.

import { add, count, fill, h, icon } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { apply, query, request, state } from "/kit/site.js";
import { cardFields, field, toast, validate } from "/kit/ui.js";
import { money } from "/parts.js";
import { mostExtraBags, paymentRules, travellerRules } from "/transitions.js";
import { BAG_PRICE, cabinOf, city, clock, fare, partyOf, takenSeats, totalOf, tripFlights } from "/world.js";
import { seatMap } from "/seats.js";

export function checkoutPage(world, main) {
  const asked = query(),
    flights = tripFlights(world, asked);
  if (!flights.length) {
    add(main, h("h1", {}, "This flight is gone"), h("a", { href: "/" }, "Search again"));
    return "Not found";
  }
  const party = partyOf(asked),
    { adults } = party,
    people = adults + party.children,
    cabin = cabinOf(asked.cabin).id,
    fareId = fare(asked.fare).id;
  const given = {
    names: [],
    bags: 0,
    seats: Object.fromEntries(flights.map(({ id }) => [id, Array(people).fill(null)])),
  };
  const total = () => totalOf({ flights, cabin, fareId, people, seats: given.seats, bags: given.bags });
  const steps = [
    ["Travellers", travellerStep],
    ...flights.map((flight) => [`Seats ${flight.from} to ${flight.to}`, () => seatStep(flight)]),
    ["Bags", bagStep],
    ["Payment", paymentStep],
  ];
  let step = 0;
  const trail = h("ol", { class: "trail" }),
    body = h("div", {}),
    side = h("aside", { class: "box summary" });
  const open = (to) => {
    step = to;
    draw();
    scrollTo(0, 0);
  };
  const next = () => open(step + 1);
  const drawSide = () =>
    fill(
      side,
      h("h2", {}, "Your trip"),
      flights.map((flight) =>
        h(
          "p",
          {},
          h("b", {}, `${city(flight.from).name} to ${city(flight.to).name}`),
          h("br"),
          `${dates.long(flight.day)}, ${clock(flight.depart)} to ${clock(flight.arrive)}`,
          h("br"),
          h("span", { class: "soft" }, `${flight.airline}, ${flight.number}`),
        ),
      ),
      h("p", {}, `${count(people, "traveller")}, ${fare(fareId).name}`),
      h("p", { class: "row total" }, "Total", h("b", { class: "end", id: "total" }, money(total()))),
    );
  const draw = () => {
    fill(
      trail,
      steps.map(([title], at) =>
        h(
          "li",
          { class: at === step ? "open" : at < step ? "done" : "" },
          h("i", {}, at < step ? icon("check", 13) : String(at + 1)),
          title,
        ),
      ),
    );
    drawSide();
    fill(body, steps[step][1]());
  };

  function travellerStep() {
    const all = Array.from({ length: people }, (_, at) => at);
    const form = h(
      "form",
      {
        class: "box",
        novalidate: true,
        onsubmit: (event) => {
          event.preventDefault();
          const values = validate(form, travellerRules(party, flights));
          if (!values) return;
          Object.assign(given, {
            names: all.map((at) => values[`name${at}`]),
            born: all.map((at) => values[`born${at}`]),
            email: values.email,
            phone: values.phone,
          });
          next();
        },
      },
      all.map((at) =>
        h(
          "div",
          {},
          h("h3", {}, `Traveller ${at + 1}, ${at < adults ? "adult" : "child"}`),
          h(
            "div",
            { class: "form" },
            field({ label: "First and last name", name: `name${at}`, value: given.names[at] ?? "" }),
            field({
              label: "Date of birth",
              name: `born${at}`,
              placeholder: "YYYY-MM-DD",
              value: given.born?.[at] ?? "",
            }),
          ),
        ),
      ),
      h("h3", {}, "Contact"),
      h(
        "div",
        { class: "form" },
        field({ label: "Email", name: "email", type: "email", value: given.email ?? "" }),
        field({ label: "Phone", name: "phone", value: given.phone ?? "" }),
      ),
      h("button", { class: "primary", "data-next": true }, "Continue"),
    );
    return form;
  }

  function seatStep(flight) {
    return h(
      "div",
      { class: "box" },
      h(
        "div",
        { class: "row step-top" },
        h("p", { class: "soft" }, "Press a seat to take it. Seats can be left to the airline."),
        h("button", { class: "primary end", "data-next": true, onclick: next }, "Continue"),
      ),
      seatMap({
        taken: takenSeats(world, flight.id),
        names: given.names,
        seats: given.seats[flight.id],
        fareId,
        ondraw: drawSide,
      }),
    );
  }

  function bagStep() {
    const shown = h("b", {}, String(given.bags)),
      turn = (by) => {
        given.bags = Math.min(mostExtraBags(people), Math.max(0, given.bags + by));
        shown.textContent = String(given.bags);
        drawSide();
      };
    return h(
      "div",
      { class: "box" },
      h("h3", {}, "Extra checked bags"),
      h("p", { class: "soft" }, `${money(BAG_PRICE)} a bag and flight, up to 23 kg.`),
      h(
        "p",
        { class: "row" },
        "Bags",
        h(
          "span",
          { class: "stepper" },
          h("button", { "aria-label": "Fewer bags", onclick: () => turn(-1) }, icon("minus", 15)),
          shown,
          h("button", { "aria-label": "More bags", onclick: () => turn(1) }, icon("plus", 15)),
        ),
      ),
      h("button", { class: "primary", "data-next": true, onclick: next }, "Continue"),
    );
  }

  function paymentStep() {
    const pay = h("button", { class: "primary", id: "pay" }, `Pay ${money(total())}`),
      agreed = h("input", { type: "checkbox", name: "agreed" });
    const form = h(
      "form",
      {
        class: "box",
        novalidate: true,
        onsubmit: (event) => {
          event.preventDefault();
          const values = validate(form, {
            ...paymentRules(world),
            agreed: () => (agreed.checked ? "" : "Please accept the conditions"),
          });
          if (!values) return;
          pay.disabled = true;
          request("book", () => book(values, agreed)).catch((error) => {
            pay.disabled = false;
            toast(error.message, "error");
          });
        },
      },
      h("h3", {}, "Payment"),
      h("div", { class: "form" }, cardFields()),
      h(
        "div",
        { class: "field" },
        h("label", { class: "check" }, agreed, "I accept the conditions of carriage"),
        h("small", { class: "error", role: "alert" }),
      ),
      pay,
    );
    return form;
  }

  function book(values, agreed) {
    apply("trips.book", {
      trip: { out: asked.out, back: asked.back, cabin, fare: fareId },
      party,
      ...given,
      card: { number: values.card, holder: values.holder, expiry: values.expiry, code: values.code },
      agreed: agreed.checked,
    });
    const { reference: code, email } = state().bookings[0];
    fill(
      main,
      h(
        "section",
        { class: "box thanks" },
        icon("check", 54),
        h("h1", {}, "You are booked"),
        h("p", {}, "Booking reference"),
        h("b", { id: "reference" }, code),
        h(
          "p",
          {},
          `${city(flights[0].from).name} to ${city(flights[0].to).name}, ${dates.long(flights[0].day)}`,
        ),
        h("p", { class: "soft" }, `Tickets are on their way to ${email}.`),
        h("a", { class: "button", href: "/manage/" }, "My trips"),
      ),
    );
    scrollTo(0, 0);
  }

  add(main, h("h1", {}, "Book your trip"), trail, h("div", { class: "booking" }, body, side));
  draw();
  return "Checkout";
}
