// Days as ISO texts ("2027-03-09"). No clock is read: every world brings its own today.

const DAY = 86_400_000;
export const MONTHS = [
  "January",
  "February",
  "March",
  "April",
  "May",
  "June",
  "July",
  "August",
  "September",
  "October",
  "November",
  "December",
];
export const WEEKDAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

const at = (iso) => new Date(`${iso}T00:00:00Z`);
const iso = (date) => date.toISOString().slice(0, 10);

/** The day so many days later; earlier if negative. */
export const plus = (day, days) => iso(new Date(at(day).getTime() + days * DAY));
/** Days from one day to another. */
export const between = (from, to) => Math.round((at(to) - at(from)) / DAY);
export const weekday = (day) => WEEKDAYS[at(day).getUTCDay()];
/** 0 for Sunday. */
export const weekdayIndex = (day) => at(day).getUTCDay();
export const year = (day) => Number(day.slice(0, 4));
export const month = (day) => Number(day.slice(5, 7));
export const dayOfMonth = (day) => Number(day.slice(8, 10));
/** A day from its parts; months from 1. */
export const day = (y, m, d) => iso(new Date(Date.UTC(y, m - 1, d)));
export const daysInMonth = (y, m) => new Date(Date.UTC(y, m, 0)).getUTCDate();

/** "March 9, 2027" */
export const long = (day) => `${MONTHS[month(day) - 1]} ${dayOfMonth(day)}, ${year(day)}`;
/** "Mar 9, 2027" */
export const short = (day) => `${MONTHS[month(day) - 1].slice(0, 3)} ${dayOfMonth(day)}, ${year(day)}`;
/** "9 March 2027" */
export const british = (day) => `${dayOfMonth(day)} ${MONTHS[month(day) - 1]} ${year(day)}`;
/** "Tue, Mar 9" */
export const brief = (day) =>
  `${weekday(day).slice(0, 3)}, ${MONTHS[month(day) - 1].slice(0, 3)} ${dayOfMonth(day)}`;
