// What forms accept. A rule gives a field's problem, or "": the pages show it, the transitions refuse by it.

import * as dates from "/kit/dates.js";
import { isCardNumber } from "/kit/words.js";

export const filled = (what) => (value) => (value ? "" : `Enter ${what}`);
export const oneOf =
  (options, problem = "Choose one of the list") =>
  (value) =>
    options.includes(value) ? "" : problem;
export const email = (value) =>
  /^[^@\s]+@[^@\s]+\.[a-z]{2,}$/i.test(value) ? "" : "Enter an email address such as name@example.com";
export const digits =
  (what, least, most = least) =>
  (value) =>
    new RegExp(`^\\d{${least},${most}}$`).test(value.replace(/[ -]/g, ""))
      ? ""
      : `Enter ${what} of ${least === most ? least : `${least} to ${most}`} digits`;

/** A card that is valid today; a site may say in its own words that none is valid for so long. */
export const cardRules = ({ today }, tooLong = "No card is valid for that long") => ({
  card: (value) => (isCardNumber(value) ? "" : "This is not a valid card number"),
  holder: filled("the name on the card"),
  expiry: (value) => expiryProblem(value, today, tooLong),
  code: digits("a security code", 3, 4),
});

function expiryProblem(expiry, today, tooLong) {
  const [, month, year] = expiry.match(/^(0[1-9]|1[0-2])\s*\/\s*(\d{2})$/) ?? [];
  if (!month) return "Enter month and year as MM/YY";
  const end = `20${year}-${month}`;
  if (end < today.slice(0, 7)) return "This card has expired";
  return end > `${dates.year(today) + 20}${today.slice(4, 7)}` ? tooLong : "";
}

/** A card as an order keeps it: number, expiry and code without the spaces that were typed. */
export const keptCard = ({ card, holder, expiry, code }) => ({
  number: card.replace(/[ -]/g, ""),
  holder,
  expiry: expiry.replace(/\s/g, ""),
  code: code.replace(/[ -]/g, ""),
});

/** Whether a text is a day. */
export const isDay = (day) =>
  typeof day === "string" &&
  /^\d{4}-\d\d-\d\d$/.test(day) &&
  !Number.isNaN(Date.parse(day)) &&
  dates.plus(day, 0) === day;

/** Refuses a transition for this reason; none if there is no problem. */
export function refuse(problem) {
  if (problem) throw new Error(problem);
}

/** Refuses a transition for this reason unless the condition holds. */
export function insist(condition, problem) {
  if (!condition) throw new Error(problem);
}

/** The values that these rules are about, each a text that its rule has accepted. */
export function checked(values, rules) {
  return Object.fromEntries(
    Object.entries(rules).map(([name, rule]) => {
      const value = values?.[name];
      refuse(typeof value === "string" ? rule(value) : `${name} is no text`);
      return [name, value];
    }),
  );
}
