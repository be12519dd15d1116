// Reading a question and answering it in panels: { heard, kind, panels: [{ id, title, text, table, plot, steps }] }. A table is { head, rows, file }.

import * as dates from "/kit/dates.js";
import { capital, grouped, slug } from "/kit/dom.js";
import { UNITS, evaluate, factors, gcd, loan, quadratic, roman, roots, statistics, unit } from "/maths.js";
import { dataset } from "/world.js";

/** A number as it is shown: whole ones in full, others with so many digits. */
export function show(number, digits = 6) {
  if (Number.isInteger(number) && Math.abs(number) < 1e15)
    return `${number < 0 ? "-" : ""}${grouped(Math.abs(number))}`;
  const short = Number(number.toPrecision(digits));
  if (Math.abs(short) >= 1e15 || Math.abs(short) < 1e-6)
    return short.toExponential().replace("e+", " × 10^").replace("e", " × 10^");
  const [whole, rest] = String(Math.abs(short)).split(".");
  return `${short < 0 ? "-" : ""}${grouped(whole)}${rest ? `.${rest}` : ""}`;
}

/** The unit that a column's numbers have for the visitor; "" for those without. */
export const unitOf = (column, settings) =>
  column.imperial && settings.units === "imperial" ? column.imperial[0] : (column.unit ?? "");

/** A fact of a thing, in the visitor's units. */
export function cell(column, row, settings = { units: "metric", digits: 6 }) {
  const value = row[column.key];
  if (column.day) return dates.long(value);
  if (column.text) return value;
  if (column.plain) return String(value);
  if (column.imperial && settings.units === "imperial")
    return `${show(value * column.imperial[1], settings.digits)} ${column.imperial[0]}`;
  return `${show(value, settings.digits)}${column.unit ? ` ${column.unit}` : ""}`;
}

/** Longer questions are not understood; the number of steps that any other takes is bounded, too. */
const LONGEST_QUESTION = 600;
const LARGEST_FACTORED = 1e12,
  MOST_FACTORED = 12;

const DAY = "(\\w+ \\d{1,2},? \\d{4}|\\d{1,2} \\w+ \\d{4}|\\d{4}-\\d\\d-\\d\\d|today)";

/** A day from "March 9, 2027", "9 March 2027", "2027-03-09" or "today"; null if it is none. */
function dayOf(text, today) {
  if (text === "today") return today;
  if (/^\d{4}-/.test(text)) {
    const [y, m, d] = text.split("-").map(Number);
    return m >= 1 && m <= 12 && d >= 1 && d <= dates.daysInMonth(y, m) ? text : null;
  }
  const [, a, b, y] = text.match(/^(\w+) (\w+),? (\d{4})$/),
    [name, d] = /^\d/.test(a) ? [b, a] : [a, b];
  const m = dates.MONTHS.findIndex((month) => name.length >= 3 && month.toLowerCase().startsWith(name)) + 1;
  return m && Number(d) >= 1 && Number(d) <= dates.daysInMonth(Number(y), m)
    ? dates.day(Number(y), m, Number(d))
    : null;
}

/** Answers a question; null if it is not understood. */
export function ask(world, question, settings) {
  if (question.length > LONGEST_QUESTION) return null;
  const text = question
    .toLowerCase()
    .replace(/\s+/g, " ")
    .replace(/[?=]+$/, "")
    .replace(/^(what is|what's|calculate|compute|how much is|how many|show me|the) /, "")
    .replace(/^the /, "")
    .trim();
  for (const rule of RULES) {
    const match = text.match(rule.pattern),
      found = match && rule.answer(match, { world, settings, text });
    if (found) return found;
  }
  return null;
}

const result = (text, more = {}) => ({ id: "result", title: "Result", text, ...more });
const panel = (title, text) => ({ id: slug(title), title, text });
const numbers = (text) => (text.match(/-?\d+(\.\d+)?/g) ?? []).map(Number);

const RULES = [
  {
    pattern: new RegExp(`^days (?:between|from) ${DAY} (?:and|to|until) ${DAY}$`),
    answer: ([, a, b], { world, settings }) => {
      const [from, to] = [dayOf(a, world.today), dayOf(b, world.today)];
      if (!from || !to) return null;
      const days = dates.between(from, to);
      return {
        kind: "Dates",
        heard: `days between ${dates.long(from)} and ${dates.long(to)}`,
        panels: [
          result(`${grouped(Math.abs(days))} days`),
          panel(
            "In weeks",
            `${grouped(Math.floor(Math.abs(days) / 7))} weeks and ${Math.abs(days) % 7} days`,
          ),
          panel("In hours", `${grouped(Math.abs(days) * 24)} hours`),
          panel("Weekdays", `${dates.weekday(from)} to ${dates.weekday(to)}`),
          panel("Share of a year", show(Math.abs(days) / 365.25, settings.digits)),
        ],
      };
    },
  },
  {
    pattern: new RegExp(`^(\\d+) (days|weeks) (after|from|before) ${DAY}$`),
    answer: ([, count, kind, way, start], { world }) => {
      const from = dayOf(start, world.today);
      if (!from || Number(count) > 100000) return null;
      return aboutDay(
        dates.plus(from, Number(count) * (kind === "weeks" ? 7 : 1) * (way === "before" ? -1 : 1)),
        `${count} ${kind} ${way} ${dates.long(from)}`,
        world,
      );
    },
  },
  {
    pattern: new RegExp(`^(?:weekday|day of the week) (?:of |on )?${DAY}$|^${DAY}$`),
    answer: ([, a, b], { world }) => {
      const day = dayOf(a ?? b, world.today);
      return day && aboutDay(day, dates.long(day), world);
    },
  },
  {
    pattern: /^(\d+) (?:in|to|into|as) (binary|octal|hexadecimal|hex|roman numerals|base \d+)$/,
    answer: ([, digits, base]) => inBase(Number(digits), base),
  },
  {
    pattern: /^(-?[\d.,]+) ?(.+?) (?:in|to|into|as) (.+)$/,
    answer: ([, amount, from, to], { settings }) =>
      convert(Number(amount.replace(/,/g, "")), from, to, settings),
  },
  {
    pattern: /^(?:mean|average|median|standard deviation|variance|sum|statistics|range)(?: of)? (.+)$/,
    answer: ([, list], { settings, text }) => describe(numbers(list), text, settings),
  },
  {
    pattern: /^(?:factor|factorise|factorize|prime factors of|is) (\d+)(?: prime)?$/,
    answer: ([, digits]) => aboutNumber(Number(digits)),
  },
  { pattern: /^(gcd|lcm)(?: of)? ([\d, and]+)$/, answer: ([, what, list]) => common(what, numbers(list)) },
  { pattern: /^solve (.+)=(.+)$/, answer: ([, left, right], { settings }) => solve(left, right, settings) },
  {
    pattern: /^plot (.+?)(?: from (-?[\d.]+) to (-?[\d.]+))?$/,
    answer: ([, formula, low, high], { settings }) =>
      plot(formula, low === undefined ? -10 : Number(low), high === undefined ? 10 : Number(high), settings),
  },
  {
    pattern: /^(?:loan|mortgage)(?: of)? \$?([\d,]+)(?: dollars)? at ([\d.]+) ?% (?:for|over) (\d+) years$/,
    answer: ([, amount, percent, years]) =>
      repay(Number(amount.replace(/,/g, "")), Number(percent), Number(years)),
  },
  {
    pattern: /^compare (.+)$|^(.+ (?:vs|versus) .+)$/,
    answer: ([, a, b], { world, settings }) =>
      compare((a ?? b).split(/,? and | vs | versus |, /), world, settings),
  },
  {
    pattern:
      /^(?:(largest|smallest|highest|lowest) )?(countries|cities|foods|minerals|stars)(?: (?:in|of) (.+?))?(?: by (.+))?$/,
    answer: ([, way, id, group, by], { world, settings }) =>
      ranking(world, { id, group, by, up: way === "smallest" || way === "lowest" }, settings),
  },
  {
    pattern: /^(.+) of (.+)$/,
    answer: ([, what, name], { world, settings }) => property(world, what, name, settings),
  },
  { pattern: /^(.+)$/, answer: ([, name], { world, settings }) => thing(world, name, settings) },
  { pattern: /^(.+)$/, answer: ([, text], { settings }) => calculate(text, settings) },
];

function aboutDay(day, heard, world) {
  const away = dates.between(world.today, day);
  return {
    kind: "Dates",
    heard,
    panels: [
      result(`${dates.long(day)}`),
      panel("Weekday", dates.weekday(day)),
      panel(
        "Day of the year",
        `${dates.between(dates.day(dates.year(day), 1, 1), day) + 1} of ${dates.between(dates.day(dates.year(day), 1, 1), dates.day(dates.year(day) + 1, 1, 1))}`,
      ),
      panel("From today", away ? `${grouped(Math.abs(away))} days ${away > 0 ? "ahead" : "ago"}` : "Today"),
    ],
  };
}

function inBase(number, name) {
  if (!Number.isSafeInteger(number)) return null;
  if (name === "roman numerals")
    return number >= 1 && number <= 3999
      ? { kind: "Numbers", heard: `${number} in Roman numerals`, panels: [result(roman(number))] }
      : null;
  const base = { binary: 2, octal: 8, hexadecimal: 16, hex: 16 }[name] ?? Number(name.slice(5));
  if (base < 2 || base > 36) return null;
  return {
    kind: "Numbers",
    heard: `${number} in base ${base}`,
    panels: [
      result(number.toString(base)),
      panel("Digits", String(number.toString(base).length)),
      {
        id: "others",
        title: "Other bases",
        table: {
          head: ["Base", "Digits"],
          rows: [2, 8, 12, 16].map((other) => [String(other), number.toString(other)]),
        },
      },
    ],
  };
}

function convert(amount, from, to, { digits }) {
  const [a, b] = [unit(from), unit(to)];
  if (!a || !b || a.kind !== b.kind || !Number.isFinite(amount)) return null;
  const others = UNITS[a.kind]
    .filter(([names]) => (names[1] ?? names[0]) !== b.name)
    .map(([names, size]) => [names[1] ?? names[0], show((amount * a.size) / size, digits)]);
  return {
    kind: `Units of ${a.kind}`,
    heard: `convert ${show(amount, 12)} ${a.name} to ${b.name}`,
    panels: [
      result(`${show((amount * a.size) / b.size, digits)} ${b.name}`),
      {
        id: "others",
        title: "In other units",
        table: { head: ["Unit", "Amount"], rows: others, file: `${slug(a.name)}-conversions.csv` },
      },
    ],
  };
}

function describe(list, heard, { digits }) {
  if (list.length < 2) return null;
  const all = statistics(list),
    rows = [
      ["Count", all.count],
      ["Sum", all.sum],
      ["Mean", all.mean],
      ["Median", all.median],
      ["Smallest", all.smallest],
      ["Largest", all.largest],
      ["Range", all.largest - all.smallest],
      ["Variance", all.variance],
      ["Standard deviation", all.deviation],
    ].map(([name, value]) => [name, show(value, digits)]);
  const wanted = rows.find(([name]) => heard.startsWith(name.toLowerCase())) ?? rows[2];
  const size = Math.max(...list.map(Math.abs)),
    bars = list
      .map(
        (one, at) =>
          `<rect x="${10 + (at * 580) / list.length}" y="${150 - (Math.max(0, one) / size) * 130}" width="${Math.max(4, 520 / list.length)}" height="${(Math.abs(one) / size) * 130}" fill="#9b2d3f" opacity=".8"/>`,
      )
      .join("");
  return {
    kind: "Statistics",
    heard,
    panels: [
      result(`${wanted[0]}: ${wanted[1]}`),
      {
        id: "summary",
        title: "Summary (sample)",
        table: { head: ["Measure", "Value"], rows, file: "statistics.csv" },
      },
      {
        id: "chart",
        title: "Values",
        plot: `<svg viewBox="0 0 600 170">${bars}<path d="M0 150h600" stroke="#555"/></svg>`,
      },
    ],
  };
}

function aboutNumber(number) {
  if (!Number.isSafeInteger(number) || number < 2 || number > LARGEST_FACTORED) return null;
  const list = factors(number),
    powers = [...new Set(list)].map((prime) => {
      const times = list.filter((one) => one === prime).length;
      return times > 1 ? `${prime}^${times}` : String(prime);
    });
  const divisors = [...new Set(list)].reduce(
    (count, prime) => count * (list.filter((one) => one === prime).length + 1),
    1,
  );
  return {
    kind: "Numbers",
    heard: `prime factors of ${grouped(number)}`,
    panels: [
      result(list.length === 1 ? `${grouped(number)} is prime` : powers.join(" × ")),
      panel("Number of divisors", String(divisors)),
      panel("Largest prime factor", grouped(list.at(-1))),
      panel("Digit sum", String([...String(number)].reduce((sum, digit) => sum + Number(digit), 0))),
    ],
  };
}

function common(what, list) {
  if (list.length < 2 || list.length > MOST_FACTORED) return null;
  if (list.some((one) => one < 1 || one > LARGEST_FACTORED || !Number.isInteger(one))) return null;
  const value = what === "gcd" ? list.reduce(gcd) : list.reduce((a, b) => (a / gcd(a, b)) * b);
  return {
    kind: "Numbers",
    heard: `${what === "gcd" ? "greatest common divisor" : "least common multiple"} of ${list.join(", ")}`,
    panels: [
      result(show(value)),
      {
        id: "factors",
        title: "Prime factors",
        table: {
          head: ["Number", "Factors"],
          rows: list.map((one) => [String(one), factors(one).join(" × ") || "1"]),
        },
      },
    ],
  };
}

function solve(left, right, { digits }) {
  const form = quadratic(`(${left})-(${right})`);
  if (!form || (!form[0] && !form[1])) return null;
  const found = roots(form),
    [a, b, c] = form.map((one) => show(one, digits));
  const steps = form[0]
    ? [
        `Bring all to one side: ${a} x² + ${b} x + ${c} = 0`,
        `Discriminant: ${show(form[1] ** 2 - 4 * form[0] * form[2], digits)}`,
        "x = (−b ± √discriminant) / 2a",
      ]
    : [`Bring all to one side: ${b} x + ${c} = 0`, "Divide by the factor of x"];
  return {
    kind: "Equations",
    heard: `solve ${left.trim()} = ${right.trim()}`,
    panels: [
      result(
        found.length ? found.map((one) => `x = ${show(one, digits)}`).join("  or  ") : "no real solution",
      ),
      { id: "steps", title: "Steps", steps },
      panel(
        "Sum of the solutions",
        found.length
          ? show(
              found.reduce((sum, one) => sum + one, 0),
              digits,
            )
          : "none",
      ),
    ],
  };
}

function plot(formula, low, high, { digits }) {
  if (!(low < high)) return null;
  const points = Array.from({ length: 241 }, (_, at) => {
    const x = low + ((high - low) * at) / 240;
    return [x, evaluate(formula, x)];
  }).filter(([, y]) => y !== null);
  if (points.length < 2) return null;
  const least = points.reduce((a, b) => (b[1] < a[1] ? b : a)),
    most = points.reduce((a, b) => (b[1] > a[1] ? b : a)),
    tall = most[1] - least[1] || 1;
  const place = ([x, y]) =>
    `${(20 + ((x - low) / (high - low)) * 560).toFixed(1)} ${(200 - ((y - least[1]) / tall) * 180).toFixed(1)}`;
  const axis =
    least[1] <= 0 && most[1] >= 0 ? `<path d="M20 ${200 + (least[1] / tall) * 180}H580" stroke="#777"/>` : "";
  const upright =
    low <= 0 && high >= 0 ? `<path d="M${20 - (low / (high - low)) * 560} 15V205" stroke="#777"/>` : "";
  const form = quadratic(formula),
    found = form ? roots(form).filter((x) => x >= low && x <= high) : [];
  return {
    kind: "Plots",
    heard: `plot ${formula} for x from ${low} to ${high}`,
    panels: [
      {
        id: "plot",
        title: "Plot",
        plot: `<svg viewBox="0 0 600 215">${axis}${upright}<path d="M${points.map(place).join("L")}" fill="none" stroke="#9b2d3f" stroke-width="3"/></svg>`,
      },
      panel("Lowest value", show(least[1], digits)),
      panel("Highest value", show(most[1], digits)),
      form ? panel("Roots", found.length ? found.map((x) => show(x, digits)).join(", ") : "none") : null,
      {
        id: "values",
        title: "Values",
        table: {
          head: ["x", "y"],
          rows: points.filter((_, at) => at % 24 === 0).map(([x, y]) => [show(x, digits), show(y, digits)]),
          file: "plot.csv",
        },
      },
    ].filter(Boolean),
  };
}

function repay(amount, percent, years) {
  if (years < 1 || years > 50 || amount < 1) return null;
  const all = loan(amount, percent, years),
    money = (value) => {
      const [whole, cents] = value.toFixed(2).split(".");
      return `$${grouped(whole)}.${cents}`;
    };
  return {
    kind: "Money",
    heard: `loan of $${grouped(amount)} at ${percent} % for ${years} years`,
    panels: [
      result(`${money(all.payment)} a month`),
      panel("Total interest", money(all.interest)),
      panel("Total paid", money(all.total)),
      {
        id: "years",
        title: "Year by year",
        table: {
          head: ["Year", "Interest", "Still owed"],
          rows: all.rows.map((row) => [String(row.year), money(row.interest), money(row.left)]),
          file: "loan.csv",
        },
      },
    ],
  };
}

const known = (world, name) => world.things.get(name.replace(/^the /, "").trim());
const columnNamed = (id, what) =>
  dataset(id).columns.find(({ title, key }) =>
    [title.toLowerCase(), key].includes(what.replace(/^the /, "").trim()),
  );

function property(world, what, name, settings) {
  const found = known(world, name),
    column = found && columnNamed(found.id, what);
  if (!column) return null;
  const { id, row } = found,
    peers = [...world.tables[id]].sort((a, b) => b[column.key] - a[column.key]);
  return {
    kind: capital(id),
    heard: `${column.title.toLowerCase()} of ${row.name}`,
    panels: [
      result(cell(column, row, settings)),
      column.text ? null : panel("Rank", `${peers.indexOf(row) + 1} of ${peers.length} ${id}`),
      factPanel(id, row, settings),
    ].filter(Boolean),
  };
}

const factPanel = (id, row, settings) => ({
  id: "facts",
  title: `Facts about ${row.name}`,
  table: {
    head: ["Property", "Value"],
    rows: dataset(id).columns.map((column) => [column.title, cell(column, row, settings)]),
    file: `${slug(row.name)}.csv`,
  },
});

function thing(world, name, settings) {
  const found = known(world, name);
  if (!found) return null;
  const { id, row } = found,
    { group, one } = dataset(id),
    kin = world.tables[id].filter((other) => other[group] === row[group] && other !== row).slice(0, 8);
  return {
    kind: capital(id),
    heard: `${row.name} (${one})`,
    panels: [
      { ...factPanel(id, row, settings), title: "Facts" },
      panel(`Other ${id} of ${row[group]}`, kin.map((other) => other.name).join(", ") || "none"),
    ],
  };
}

function compare(names, world, settings) {
  const found = names.map((name) => known(world, name));
  if (found.length < 2 || found.some((one) => !one || one.id !== found[0].id)) return null;
  const { id } = found[0];
  return {
    kind: capital(id),
    heard: `compare ${found.map(({ row }) => row.name).join(", ")}`,
    panels: [
      {
        id: "comparison",
        title: "Comparison",
        table: {
          head: ["Property", ...found.map(({ row }) => row.name)],
          rows: dataset(id).columns.map((column) => [
            column.title,
            ...found.map(({ row }) => cell(column, row, settings)),
          ]),
          file: "comparison.csv",
        },
      },
    ],
  };
}

/** Things of a kind, of one group or of all, by a property or by name. */
export function ranked(world, { id, group = "", by = "", up = false }) {
  const rows = world.tables[id].filter(
    (row) => !group || row[dataset(id).group].toLowerCase() === group.toLowerCase(),
  );
  return by ? [...rows].sort((a, b) => (up ? a[by] - b[by] : b[by] - a[by])) : rows;
}

/** The rows of a table that the visitor narrowed it to: one group, names that contain a text, a number that is at least so large. */
export const narrowed = (world, { set, group, name, by, least }) =>
  world.tables[set].filter(
    (row) =>
      (!group || row[dataset(set).group] === group) &&
      row.name.toLowerCase().includes(name) &&
      (!least || row[by] >= least),
  );

function ranking(world, { id, group, by, up }, settings) {
  const column = by ? columnNamed(id, by) : null;
  if (by && (!column || column.text)) return null;
  const rows = ranked(world, { id, group, by: column?.key, up }),
    shown = column
      ? [column]
      : dataset(id)
          .columns.filter(({ text }) => !text)
          .slice(0, 3);
  if (!rows.length) return null;
  const place = group ? rows[0][dataset(id).group] : "";
  return {
    kind: capital(id),
    heard: `${id}${place ? ` of ${place}` : ""}${column ? ` by ${column.title.toLowerCase()}, ${up ? "smallest" : "largest"} first` : ""}`,
    panels: [
      panel("Number", `${rows.length} ${id}`),
      {
        id: "ranking",
        title: column ? "Ranking" : "List",
        table: {
          head: ["", "Name", ...shown.map(({ title }) => title)],
          rows: rows
            .slice(0, 60)
            .map((row, at) => [String(at + 1), row.name, ...shown.map((one) => cell(one, row, settings))]),
          file: `${[id, place && `of-${slug(place)}`, column && `by-${slug(column.title)}`].filter(Boolean).join("-")}.csv`,
        },
      },
    ],
  };
}

function calculate(text, { digits }) {
  const value = evaluate(text);
  if (value === null) return null;
  const whole = Number.isSafeInteger(value);
  return {
    kind: "Arithmetic",
    heard: text,
    panels: [
      result(show(value, digits)),
      panel("In scientific notation", value.toExponential(4).replace("e+", " × 10^").replace("e", " × 10^")),
      whole && value >= 2 && value < LARGEST_FACTORED
        ? panel("Prime factors", factors(value).join(" × "))
        : null,
      whole && value >= 0
        ? panel("In binary", value.toString(2))
        : panel("Nearest whole number", show(Math.round(value))),
    ].filter(Boolean),
  };
}
