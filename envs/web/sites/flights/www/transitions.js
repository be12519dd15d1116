// What a visitor of the flight search can change, each a function of the state, plain arguments and the world. A transition throws where no page
// would do it. The rules of the forms are here, too: the pages show what a rule finds wrong, a transition throws it.

import * as dates from "/kit/dates.js";
import { cardRules, checked, digits, email, filled, insist, keptCard } from "/kit/rules.js";
import {
  BAG_PRICE,
  CABINS,
  FARES,
  LETTERS,
  REASONS,
  ROWS,
  city,
  flightOf,
  isBookable,
  partyOf,
  reference,
  takenSeats,
  totalOf,
  tripFlights,
} from "/world.js";

export const MEALS = ["Standard", "Vegetarian", "Vegan", "Gluten free", "None"];

// ---- what the visitor sees of their trips ----

/** All trips that can be found: those booked here, and two that were booked before, with what was changed. */
export const tripsNow = (now, world) => [
  ...now.bookings,
  ...[world.booked, world.soon].map((booking) => ({ ...booking, ...now.changes[booking.reference] })),
];

/** The trip of a reference and a last name, as they are typed; undefined if there is none. */
export const tripNamed = (now, world, typed) =>
  tripsNow(now, world).find(
    ({ reference, surname }) =>
      reference === typed.reference.toUpperCase() && surname.toLowerCase() === typed.surname.toLowerCase(),
  );

/** Whether a trip begins so soon that its travellers can check in. */
export const isSoon = (world, booking) =>
  dates.between(world.today, flightOf(world, booking.flights[0]).day) <= 1;

/** How many checked bags a trip can have. */
export const mostBags = (booking) => Math.max(5, booking.bags);
/** How many extra bags so many people can take when they book. */
export const mostExtraBags = (people) => people * 2;

export const isSameAlert = (one, other) =>
  ["from", "to", "depart", "back"].every((key) => one[key] === other[key]);

// ---- rules of the forms: (value) => what is wrong with it, or "" ----

export const findRules = {
  reference: filled("the booking reference"),
  surname: filled("the last name"),
};

/** Somebody is adult or child on the day of the first flight. */
const bornRule = (isAdult, day) => (value) => {
  const years = /^\d{4}-\d\d-\d\d$/.test(value) ? dates.between(value, day) / 365.25 : Number.NaN;
  if (Number.isNaN(years)) return "Enter the date as YYYY-MM-DD";
  if (isAdult === years >= 12) return "";
  return isAdult ? "Adults are 12 or older" : "Children are younger than 12";
};

/** The rules of the travellers' step: `name0`, `born0` and so on, adults first, then what is asked once. */
export const travellerRules = ({ adults, children }, flights) => ({
  ...Object.fromEntries(
    Array.from({ length: adults + children }, (_, at) => [
      [`name${at}`, filled("the name as in the passport")],
      [`born${at}`, bornRule(at < adults, flights[0].day)],
    ]).flat(),
  ),
  email,
  phone: digits("a phone number", 7, 14),
});

/** The rules of the payment's fields. */
export const paymentRules = (world) => cardRules(world, "No card is valid for so long");

export const checkInRules = {
  passport: (value) => (/^[A-Z]\d{7}$/i.test(value) ? "" : "Enter one letter and seven digits"),
  goods: (value) => (value ? "" : "Please confirm"),
};

export const cancelRules = { reason: (value) => (value ? "" : "Choose a reason") };

// ---- what a transition insists on ----

/** Seats of a flight, one of each person or null: free, and no seat for two. */
function insistOnSeats(world, flight, seats, people) {
  insist(Array.isArray(seats) && seats.length === people, "one seat, or none, for each traveller");
  const chosen = seats.filter((seat) => seat !== null),
    taken = takenSeats(world, flight);
  const isSeat = (seat) => {
    const [, row, letter] = (typeof seat === "string" && /^([1-9]\d?)([A-Z])$/.exec(seat)) || [];
    return Number(row) <= ROWS && LETTERS.includes(letter);
  };
  insist(chosen.every(isSeat), "no such seat");
  insist(!chosen.some((seat) => taken.has(seat)), "this seat is taken");
  insist(new Set(chosen).size === chosen.length, "a seat is for one traveller");
}

/** A trip that the visitor has found and not cancelled. */
function openTrip(now, world, reference) {
  const trip = tripsNow(now, world).find((one) => one.reference === reference);
  insist(trip && now.unlocked.includes(reference), "no such trip");
  insist(trip.status !== "Cancelled", "this trip is cancelled");
  return trip;
}

function change(now, { reference }, changes) {
  const own = now.bookings.find((one) => one.reference === reference);
  if (own) Object.assign(own, changes);
  else now.changes[reference] = { ...now.changes[reference], ...changes };
}

/** A booking as the state keeps it, from what was chosen and typed; throws where the checkout would not go on. */
function booked(now, world, { trip, party, names, born, email, phone, seats, bags, card, agreed }) {
  const flights = tripFlights(world, trip),
    { adults, children } = partyOf(party),
    people = adults + children;
  insist(flights.length, "no such flight");
  insist(adults === party.adults && children === party.children, "no such number of travellers");
  const isKind = CABINS.some(({ id }) => id === trip.cabin) && FARES.some(({ id }) => id === trip.fare);
  insist(isKind, "no such cabin or fare");
  insist(names.length === people && born.length === people, "a name and a date of birth for each traveller");
  const travellers = {
    ...Object.fromEntries(names.map((name, at) => [`name${at}`, name])),
    ...Object.fromEntries(born.map((day, at) => [`born${at}`, day])),
    email,
    phone,
  };
  checked(travellers, travellerRules(party, flights));
  flights.forEach(({ id }) => insistOnSeats(world, id, seats[id], people));
  insist(Object.keys(seats).length === flights.length, "seats of another flight");
  insist(Number.isInteger(bags) && bags >= 0 && bags <= mostExtraBags(people), "no such number of bags");
  const paid = checked({ ...card, card: card.number }, paymentRules(world));
  insist(agreed === true, "the conditions are not accepted");
  return {
    reference: reference(world.draw.fork(`reference/${now.bookings.length}`)),
    surname: names[0].split(" ").at(-1),
    flights: flights.map(({ id }) => id),
    cabin: trip.cabin,
    fare: trip.fare,
    passengers: names,
    born,
    seats,
    bags,
    email,
    phone: phone.replace(/[ -]/g, ""),
    card: keptCard(paid),
    total: totalOf({ flights, cabin: trip.cabin, fareId: trip.fare, people, seats, bags }),
    status: "Confirmed",
  };
}

export const transitions = {
  "alerts.add"(now, { from, to, depart, back }, world) {
    insist(city(from) && city(to) && from !== to, "no such route");
    insist(isBookable(world, depart), "no flights are sold for this day");
    insist(back === "" || (isBookable(world, back) && back >= depart), "no return on this day");
    const alert = { from, to, depart, back };
    insist(!now.alerts.some((one) => isSameAlert(one, alert)), "these prices are tracked already");
    now.alerts.push(alert);
  },

  "alerts.remove"(now, { from, to, depart, back }) {
    const alert = now.alerts.find((one) => isSameAlert(one, { from, to, depart, back }));
    insist(alert, "these prices are not tracked");
    now.alerts = now.alerts.filter((one) => one !== alert);
  },

  /** Finds a trip by its reference and a last name. */
  "trips.find"(now, { reference, surname }, world) {
    checked({ reference, surname }, findRules);
    const trip = tripNamed(now, world, { reference, surname });
    insist(trip, "no such booking");
    if (!now.unlocked.includes(trip.reference)) now.unlocked.push(trip.reference);
  },

  /** `trip` has `out`, `back`, `cabin` and `fare`; `party` the `adults` and `children`; `seats` a list of each flight. */
  "trips.book"(now, order, world) {
    const booking = booked(now, world, order);
    now.bookings.unshift(booking);
    now.unlocked.push(booking.reference);
  },

  /** Seats of the first flight. */
  "trips.changeSeats"(now, { reference, seats }, world) {
    const trip = openTrip(now, world, reference),
      [flight] = trip.flights;
    insistOnSeats(world, flight, seats, trip.passengers.length);
    change(now, trip, { seats: { ...trip.seats, [flight]: seats } });
  },

  /** `bags` is how many checked bags the trip has then; more are paid for, none is given back. */
  "trips.addBags"(now, { reference, bags }, world) {
    const trip = openTrip(now, world, reference);
    const isPossible = Number.isInteger(bags) && bags >= trip.bags && bags <= mostBags(trip);
    insist(isPossible, "no such number of bags");
    change(now, trip, {
      bags,
      total: trip.total + (bags - trip.bags) * BAG_PRICE * trip.flights.length,
    });
  },

  "trips.checkIn"(now, { reference, passport, meal, goods }, world) {
    const trip = openTrip(now, world, reference);
    insist(isSoon(world, trip), "check-in opens the day before departure");
    insist(!trip.checkedIn, "check-in is done");
    checked({ passport, goods }, checkInRules);
    insist(MEALS.includes(meal), "no such meal");
    change(now, trip, { checkedIn: true, passport: passport.toUpperCase(), meal });
  },

  "trips.cancel"(now, { reference, reason }, world) {
    const trip = openTrip(now, world, reference);
    checked({ reason }, cancelRules);
    insist(REASONS.includes(reason), "no such reason");
    change(now, trip, { status: "Cancelled", reason });
  },
};
