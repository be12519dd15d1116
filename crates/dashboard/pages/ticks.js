// Where the marks of an axis stand, and how they are written: times of the reader's own zone on a clock of 24 hours.

const STEPS = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
  2592000, 7776000,
];
const MARKS_MAX = 6;

const two = (value) => String(value).padStart(2, "0");

/** `ticks`, `short` to write one, and `whole` to write any point. No two marks are written alike. */
export function ticksOf(axis, [from, to]) {
  if (axis === "version") {
    const step = wholeStep(to - from);
    const write = (at) => `version ${Math.round(at)}`;
    return { ticks: multiples(from, to, step, 0), short: (at) => String(Math.round(at)), whole: write };
  }
  const step = STEPS.find((size) => (to - from) / size < MARKS_MAX) ?? (to - from) / 4;
  if (axis === "elapsed") {
    return { ticks: multiples(from, to, step, 0), short: (at) => span(at, step), whole: (at) => span(at, 1) };
  }
  // A day begins at the reader's midnight.
  const offset = -new Date(from * 1000).getTimezoneOffset() * 60;
  return {
    ticks: multiples(from, to, step, offset),
    short: (at) => clock(at, step),
    whole: (at) => `${day(new Date(at * 1000))} ${clock(at, 1)}`,
  };
}

function wholeStep(span) {
  for (let power = 1; ; power *= 10)
    for (const factor of [1, 2, 5]) if (span / (factor * power) < MARKS_MAX) return factor * power;
}

function multiples(from, to, step, offset) {
  const marks = [];
  for (let at = Math.ceil((from + offset) / step) * step; at <= to + offset; at += step)
    marks.push(at - offset);
  return marks;
}

function day(at) {
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

function clock(seconds, step) {
  const at = new Date(seconds * 1000);
  if (step >= 86400) return day(at).slice(5);
  const time = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return step < 60 ? `${time}:${two(at.getSeconds())}` : time;
}

/** Time since a beginning: `0:05:30`, or `2:05 h` where only minutes matter. */
function span(seconds, step) {
  const whole = Math.round(seconds);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  return step < 60 ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${hours}:${two(minutes)}\u202fh`;
}
