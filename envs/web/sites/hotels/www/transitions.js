// What a visitor can change, each a function of the state, plain arguments and the world. A transition throws where no page would do it.

import * as dates from "/kit/dates.js";
import { cardRules, checked, digits, email, filled, isDay, keptCard, oneOf, refuse } from "/kit/rules.js";
import { REASONS, confirmation, fits, stay } from "/world.js";

export const ARRIVALS = ["I don't know", "Before 16:00", "16:00 to 19:00", "19:00 to 22:00", "After 22:00"];
export const GUESTS_MOST = 12;
export const ROOMS_MOST = 5;
const NIGHTS_MOST = 30;
const DAYS_AHEAD = 330;

// ---- what the forms accept ----

/** The last day that a stay can end on. */
export const lastDay = ({ today }) => dates.plus(today, DAYS_AHEAD);

export function daysProblem(world, { from, to }) {
  if (!isDay(from) || !isDay(to)) return "Choose the days of check-in and check-out";
  if (from >= to) return "Check-out must be after check-in";
  if (dates.between(from, to) > NIGHTS_MOST) return `Stays are limited to ${NIGHTS_MOST} nights`;
  return from < world.today || to > lastDay(world) ? `Choose days within the next ${DAYS_AHEAD}` : "";
}

export function partyProblem({ guests, rooms }) {
  const isCount = (number, most) => Number.isInteger(number) && number >= 1 && number <= most;
  if (!isCount(guests, GUESTS_MOST)) return `Choose 1 to ${GUESTS_MOST} guests`;
  if (!isCount(rooms, ROOMS_MOST)) return `Choose 1 to ${ROOMS_MOST} rooms`;
  return rooms > guests ? "There are more rooms than guests" : "";
}

/** The room of an offer, or null if no page offers it. */
export function offered(world, { id, room: type, from, to, guests, rooms }) {
  const room = world.byId.get(id)?.rooms.find((one) => one.type === type);
  if (!room || daysProblem(world, { from, to }) || partyProblem({ guests, rooms })) return null;
  return fits(room, guests, rooms) ? room : null;
}

export const guestRules = {
  name: filled("the guest's full name"),
  email,
  phone: digits("a phone number", 7, 14),
  arrival: oneOf(ARRIVALS),
  wishes: () => "",
};
export const paymentRules = (world) => ({
  ...cardRules(world),
  agreed: (value) => (value ? "" : "Please accept the house rules"),
});
export const findRules = { number: filled("the confirmation number"), pin: digits("the PIN", 4) };
export const cancelRules = { reason: oneOf(REASONS, "Choose a reason") };

// ---- bookings ----

/** All bookings: those of this visit, and the one made before it as it stands now. */
export const bookingsOf = (world, now) => [
  ...now.bookings,
  { ...world.booked, ...now.changes[world.booked.number] },
];

export const bookingNamed = (world, now, { number, pin }) =>
  bookingsOf(world, now).find((one) => one.number === number.toUpperCase() && one.pin === pin);

/** What a booking costs with other days. */
export function totalOf(world, booking, { from, to }) {
  const hotel = world.byId.get(booking.hotel);
  return stay(
    hotel,
    hotel.rooms.find(({ type }) => type === booking.room),
    from,
    to,
    booking.rooms,
  );
}

// ---- what changes the state ----

export const transitions = {
  "saved.toggle"(now, { id }, world) {
    refuse(!world.byId.has(id) && "there is no such place");
    now.saved = now.saved.includes(id) ? now.saved.filter((one) => one !== id) : [...now.saved, id];
  },

  "saved.remove"(now, { id }) {
    refuse(!now.saved.includes(id) && "this place is not saved");
    now.saved = now.saved.filter((one) => one !== id);
  },

  "booking.make"(now, { id, room: type, from, to, guests, rooms, ...typed }, world) {
    const room = offered(world, { id, room: type, from, to, guests, rooms });
    refuse(!room && "this offer is gone");
    const { name, email: address, phone, arrival, wishes } = checked(typed, guestRules);
    const payment = checked(typed, paymentRules(world));
    const { number, pin } = confirmation(world, now.bookings.length);
    now.bookings.unshift({
      number,
      pin,
      hotel: id,
      room: type,
      rooms,
      guests,
      from,
      to,
      total: stay(world.byId.get(id), room, from, to, rooms),
      guest: { name, email: address, phone: phone.replace(/[ -]/g, "") },
      arrival,
      wishes,
      card: keptCard(payment),
      status: "Confirmed",
    });
    now.unlocked.push(number);
  },

  "booking.find"(now, typed, world) {
    const booking = bookingNamed(world, now, checked(typed, findRules));
    refuse(!booking && "there is no booking with this number and PIN");
    if (!now.unlocked.includes(booking.number)) now.unlocked.push(booking.number);
  },

  "booking.move"(now, { number, from, to }, world) {
    const booking = openBooking(now, number, world);
    refuse(daysProblem(world, { from, to }));
    edit(now, number, { from, to, total: totalOf(world, booking, { from, to }) });
  },

  "booking.cancel"(now, { number, ...typed }, world) {
    openBooking(now, number, world);
    edit(now, number, { status: "Cancelled", ...checked(typed, cancelRules) });
  },
};

/** A booking that the visitor has found and not cancelled. */
function openBooking(now, number, world) {
  const booking = now.unlocked.includes(number)
    ? bookingsOf(world, now).find((one) => one.number === number)
    : null;
  refuse((!booking || booking.status === "Cancelled") && "there is no such booking to change");
  return booking;
}

function edit(now, number, changes) {
  const own = now.bookings.find((one) => one.number === number);
  if (own) Object.assign(own, changes);
  else now.changes[number] = { ...now.changes[number], ...changes };
}
