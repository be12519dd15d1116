// Trips that are booked: finding one, its seats, bags, check-in, cancelling.

import { add, fill, h, icon } from "/kit/dom.js";
import * as dates from "/kit/dates.js";
import { apply, onChange, state } from "/kit/site.js";
import { facts, field, modal, radios, toast, validate } from "/kit/ui.js";
import { badge, money } from "/parts.js";
import { seatMap } from "/seats.js";
import {
  MEALS,
  cancelRules,
  checkInRules,
  findRules,
  isSoon,
  mostBags,
  tripNamed,
  tripsNow,
} from "/transitions.js";
import { BAG_PRICE, REASONS, city, clock, fare, flightOf, takenSeats } from "/world.js";

export function managePage(world, main) {
  const note = h("div", {}),
    list = h("div", {});
  const form = h(
    "form",
    {
      class: "box find-trip",
      novalidate: true,
      onsubmit: (event) => {
        event.preventDefault();
        const values = validate(form, findRules);
        if (!values) return;
        const booking = tripNamed(state(), world, values);
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
        if (booking) apply("trips.find", { reference: values.reference, surname: values.surname });
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
      tripsNow(state(), world)
        .filter(({ reference }) => state().unlocked.includes(reference))
        .map((booking) => tripCard(world, booking)),
    );
  onChange(draw);
  draw();
  add(main, h("h1", {}, "My trips"), list, form);
  return "My trips";
}

function tripCard(world, booking) {
  const flights = booking.flights.map((id) => flightOf(world, id)),
    first = flights[0];
  const soon = isSoon(world, booking);
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
            { class: "seat-button", onclick: () => seatDialog(world, booking, flights) },
            "Change seat",
          ),
          h("button", { class: "bag-button", onclick: () => bagDialog(booking) }, "Add bags"),
          h(
            "button",
            {
              class: "check-in",
              disabled: !soon || booking.checkedIn,
              onclick: () => checkInDialog(booking),
            },
            "Check in",
          ),
          h("button", { class: "cancel", onclick: () => cancelDialog(booking) }, "Cancel trip"),
        ),
    soon ? null : h("p", { class: "soft" }, "Check-in opens the day before departure."),
  );
}

function seatDialog(world, booking, flights) {
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
          apply("trips.changeSeats", { reference: booking.reference, seats });
          toast("Your seat is changed.");
        },
      },
    ],
  });
}

function bagDialog(booking) {
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
    bags = Math.min(mostBags(booking), Math.max(booking.bags, bags + by));
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
          apply("trips.addBags", { reference: booking.reference, bags });
          toast("Your bags are booked.");
        },
      },
    ],
  });
}

function checkInDialog(booking) {
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
        options: MEALS,
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
          const values = validate(form, checkInRules);
          if (!values) return false;
          const { passport, meal, goods } = values;
          apply("trips.checkIn", { reference: booking.reference, passport, meal, goods });
          toast("You are checked in.");
        },
      },
    ],
  });
}

function cancelDialog(booking) {
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
          const values = validate(form, cancelRules);
          if (!values) return false;
          apply("trips.cancel", { reference: booking.reference, reason: values.reason });
          toast("The trip is cancelled.");
        },
      },
    ],
  });
}
