// What the tasks of all sites share.

import * as dates from "/kit/dates.js";
import { cardNumber, person } from "/kit/words.js";

/**
 * Draws until a task comes out that can be asked, each time with numbers of its own: `make(draw)` returns null where nothing fits. A task that is
 * scored by its answer alone is not asked if its goal gives the answer away, be it in quotes or as a number.
 */
export function until(draw, make) {
  for (let at = 0; at < 400; at++) {
    const task = make(draw.fork(at));
    if (task && (task.correct || !isGivenAway(task))) return task;
  }
  throw new Error("no task of this kind in this world");
}

function isGivenAway({ goal, expected }) {
  const quoted = [...goal.matchAll(/"([^"]+)"/g)].map(([, text]) => text.toLowerCase());
  const numbers = (goal.match(/\d+(\.\d+)?/g) ?? []).map(Number);
  return quoted.includes(String(expected).toLowerCase()) || numbers.includes(Number(expected));
}

/** Whether two lists hold the same, in whatever order. */
export const same = (list, wanted) =>
  list.length === wanted.length && wanted.every((one) => list.includes(one));

/** A day as people write it in an answer: the scorer takes any of these. */
export const spellings = (day) => [
  dates.long(day),
  dates.short(day),
  dates.british(day),
  dates.brief(day),
  day,
  dates.long(day).split(",")[0],
  dates.british(day).replace(/ \d+$/, ""),
];

/** Somebody who pays: their data, how a goal tells them, and whether a payment in the state is theirs, in every field of the form. */
export function payer(draw) {
  const name = person(draw),
    number = cardNumber(draw);
  const expiry = `${String(draw.between(1, 12)).padStart(2, "0")}/${draw.between(29, 34)}`,
    code = String(draw.between(100, 999));
  return {
    name,
    email: `${name.split(" ")[0].toLowerCase()}${draw.between(10, 99)}@mailbox.example`,
    phone: String(draw.between(2000000000, 2147483000)),
    told: `Pay with the card ${number} in the name of ${name}, expiry ${expiry}, security code ${code}.`,
    paid: (card) =>
      card.number === number.replaceAll(" ", "") &&
      card.holder.toLowerCase() === name.toLowerCase() &&
      card.expiry === expiry &&
      card.code === code,
  };
}
