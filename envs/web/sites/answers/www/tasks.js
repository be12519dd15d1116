// The answer engine's tasks: each a function of the world and a draw that belongs to the task.

import * as dates from "/kit/dates.js";
import { same, spellings, until } from "/kit/tasks.js";
import { ask, ranked } from "/engine.js";
import { freshState } from "/world.js";
import { loan, quadratic, roots, statistics, unit } from "/maths.js";

const rounded = (number, digits) => Number(number.toPrecision(digits));
const CONVERSIONS = [
  ["miles", "kilometres"],
  ["nautical miles", "kilometres"],
  ["pounds", "kilograms"],
  ["ounces", "grams"],
  ["gallons", "litres"],
  ["knots", "kilometres per hour"],
  ["feet", "metres"],
  ["stones", "kilograms"],
  ["furlongs", "metres"],
];
const COUNTRY_FACTS = [
  ["Area", "area", "in square kilometres"],
  ["Population", "population", "in people"],
  ["Highest point", "highest", "in metres"],
];

/** Numbers in a text, thousands as Deduca groups them. */
const numbersIn = (text) =>
  (text.replace(/(\d),(?=\d{3}(\D|$))/g, "$1").match(/-?\d+(\.\d+)?/g) ?? []).map(Number);

/** All that the panels of an answer say. */
const saidBy = ({ panels }) =>
  panels.flatMap(({ text, table }) => [text ?? "", ...(table ? table.rows.flat() : [])]);

/**
 * A task whose answer follows from its goal: it asks for Deduca's own answer, so the history has to hold a question of this kind whose answer
 * shows the number, and which does not itself say it. `make(draw)` gives { goal, expected } or null.
 */
function workedOut(world, draw, kind, make) {
  return until(draw, (draw) => {
    const task = make(draw);
    if (!task) return null;
    const isIt = (number) => Math.abs(number - task.expected) <= Math.abs(task.expected) * 1e-5;
    // Until would let it pass: the task has a check.
    if (numbersIn(task.goal).some(isIt)) return null;
    const shows = (q) => {
      const found = ask(world, q, freshState().settings);
      return found && kind.test(found.kind) && saidBy(found).some((text) => numbersIn(text).some(isIt));
    };
    return { ...task, correct: ({ history }) => history.some((q) => !numbersIn(q).some(isIt) && shows(q)) };
  });
}

export const tasks = {
  "answers-arithmetic"(world, draw) {
    return workedOut(world, draw, /^Arithmetic$/, (draw) => {
      const [a, b, c, d] = [
        draw.between(23, 89),
        draw.between(112, 480),
        draw.between(31, 97),
        draw.between(12, 39),
      ];
      return {
        goal: `Have Deduca work out ${a} × (${b} + ${c}) − ${d}². Answer with the number.`,
        expected: a * (b + c) - d * d,
      };
    });
  },

  "answers-units"(world, draw) {
    return workedOut(world, draw, /^Units of /, (draw) => {
      const [from, to] = draw.one(CONVERSIONS),
        amount = draw.decimal(3, 400, 1);
      return {
        goal: `Have Deduca convert ${amount} ${from} to ${to}. Answer with the number as Deduca shows it.`,
        expected: rounded((amount * unit(from).size) / unit(to).size, 6),
      };
    });
  },

  "answers-fact"(world, draw) {
    const [title, key, told] = draw.one(COUNTRY_FACTS),
      country = draw.one(world.tables.countries);
    return {
      goal: `What is the ${title.toLowerCase()} of ${country.name}, ${told}? Answer with the number.`,
      expected: country[key],
    };
  },

  "answers-days"(world, draw) {
    return workedOut(world, draw, /^Dates$/, (draw) => {
      const from = dates.plus(world.today, -draw.between(400, 9000)),
        to = dates.plus(world.today, draw.between(20, 900));
      return {
        goal: `Ask Deduca how many days lie between ${dates.long(from)} and ${dates.long(to)}. Answer with the number.`,
        expected: dates.between(from, to),
      };
    });
  },

  "answers-save"(world, draw) {
    const star = draw.one(world.tables.stars),
      wanted = `distance of ${star.name}`.toLowerCase();
    return {
      goal: `Ask for the distance of ${star.name} and save the result (the panel of that title) to the notebook. Answer "done" at the end.`,
      correct: ({ notebook }) =>
        notebook.length === 1 &&
        notebook[0].note === "" &&
        notebook[0].id === "result" &&
        notebook[0].q
          .toLowerCase()
          .replace(/^(what is )?(the )?/, "")
          .replace(/\?$/, "") === wanted,
    };
  },

  "answers-rank"(world, draw) {
    return until(draw, (draw) => {
      const group = draw.one(world.continents),
        [title, by] = draw.one([
          ["area", "area"],
          ["population", "population"],
          ["GDP", "gdp"],
        ]),
        place = draw.one([
          ["second", 1],
          ["third", 2],
          ["fourth", 3],
        ]);
      const list = ranked(world, { id: "countries", group, by });
      return {
        goal: `Which country of the continent ${group} has the ${place[0]} largest ${title}? Answer with its name.`,
        expected: list[place[1]].name,
      };
    });
  },

  "answers-difference"(world, draw) {
    return until(draw, (draw) => {
      const [a, b] = draw.some(world.tables.foods, 2),
        key = draw.one(["protein", "fat", "sugar", "fibre"]);
      const more = Math.round((a[key] - b[key]) * 10) / 10;
      return more < 1
        ? null
        : {
            goal: `How many grams more ${key} does "${a.name}" have per 100 g than "${b.name}"? Answer with the number.`,
            expected: more,
          };
    });
  },

  "answers-statistics"(world, draw) {
    return workedOut(world, draw, /^Statistics$/, (draw) => {
      const list = Array.from({ length: draw.between(7, 10) }, () => draw.decimal(12, 96));
      return {
        goal: `Ask Deduca for the standard deviation (of a sample) of these numbers: ${list.join(", ")}. Answer with the number as Deduca shows it.`,
        expected: rounded(statistics(list).deviation, 6),
      };
    });
  },

  "answers-loan"(world, draw) {
    return workedOut(world, draw, /^Money$/, (draw) => {
      const amount = draw.between(40, 480) * 1000,
        percent = draw.decimal(2.1, 7.8),
        years = draw.between(8, 30);
      return {
        goal: `Somebody borrows $${amount} at ${percent}% for ${years} years and pays it back in equal months. How much interest do they pay in total, as Deduca works it out? Answer with the number of dollars and cents.`,
        expected: Number(loan(amount, percent, years).interest.toFixed(2)),
      };
    });
  },

  "answers-csv"(world, draw) {
    const group = draw.one(world.continents);
    return {
      goal: `In the data tables, narrow the countries to the continent ${group} and download that table as CSV. Answer "done" at the end.`,
      touches: ["downloads"],
      correct: ({ downloads: [download, more] }) =>
        download &&
        !more &&
        download.page === "data" &&
        download.choice.set === "countries" &&
        download.choice.group === group &&
        !download.choice.name &&
        !download.choice.least,
    };
  },

  "answers-settings"(world, draw) {
    const country = draw.one(world.tables.countries);
    return {
      goal: `Switch Deduca to imperial units and 4 digits. What is then shown as the area of ${country.name}, in square miles? Answer with the number.`,
      expected: Number.isInteger(country.area * 0.386102)
        ? country.area * 0.386102
        : rounded(country.area * 0.386102, 4),
      correct: ({ settings }) => settings.units === "imperial" && settings.digits === 4,
    };
  },

  "answers-equation"(world, draw) {
    return workedOut(world, draw, /^Equations$/, (draw) => {
      const [p, q] = [draw.between(-40, 40), draw.between(3, 60)],
        scale = draw.between(2, 5);
      const [a, b, c] = [scale, -scale * (p + q), scale * p * q];
      const found = roots(quadratic(`${a}x^2 + (${b})x + (${c})`));
      // Nor does the equation give the answer away once it is divided by its first factor.
      const isGiven = [p + q, p * q].some((one) => Math.abs(one) === q);
      return p >= q || !b || !c || isGiven
        ? null
        : {
            goal: `Have Deduca solve an equation: what is the larger solution of ${a}x² ${b < 0 ? "−" : "+"} ${Math.abs(b)}x ${c < 0 ? "−" : "+"} ${Math.abs(c)} = 0? Answer with the number.`,
            expected: Math.round(found.at(-1) * 1e6) / 1e6,
          };
    });
  },

  "answers-history"(world, draw) {
    const [a, b, c] = draw.some(world.tables.cities, 3).map(({ name }) => `population of ${name}`);
    const history = draw.shuffled([a, b, c, `${draw.between(12, 90)} * ${draw.between(12, 90)}`]);
    return {
      goal: `Delete the question "${b}" from the history and leave the others there. Answer "done" at the end.`,
      state: { history },
      correct: (now) =>
        same(
          now.history,
          history.filter((q) => q !== b),
        ),
    };
  },

  "answers-filter"(world, draw) {
    return until(draw, (draw) => {
      const least = draw.between(4, 14) * 500,
        list = ranked(world, { id: "countries", by: "density" }).filter(({ area }) => area >= least * 100);
      const [first, second] = list;
      return !second || first.density === second.density || list.length > 80
        ? null
        : {
            goal: `Among all countries with an area of at least ${least * 100} square kilometres, which has the highest density of population? Answer with its name.`,
            expected: first.name,
          };
    });
  },

  "answers-notebook"(world, draw) {
    const [star, mineral] = [draw.one(world.tables.stars), draw.one(world.tables.minerals)],
      number = draw.between(20000, 990000),
      note = draw.one(["for the lecture", "check again", "goes into the report"]);
    const wanted = [`mass of ${star.name}`, `hardness of ${mineral.name}`, `factor ${number}`];
    const isWanted = (entries) =>
      same(
        entries.map(({ q, id, note }) => `${q}/${id}`.toLowerCase() + note),
        wanted.map((q, at) => `${q}/result`.toLowerCase() + (at === 2 ? note : "")),
      );
    return {
      goal: `Save three results to the notebook, those of the questions "${wanted.join('", "')}". Write the note "${note}" to the last of them and download the notebook as CSV. Answer "done" at the end.`,
      touches: ["downloads"],
      correct: ({ notebook, downloads: [download, more] }) =>
        isWanted(notebook) &&
        download &&
        !more &&
        download.page === "notebook" &&
        isWanted(download.choice.entries),
    };
  },

  "answers-chain"(world, draw) {
    const country = draw.one(world.tables.countries),
      days = draw.between(1200, 9900);
    return {
      goal: `Look up the day of independence of the country whose capital is ${country.capital}. Which day came ${days} days after it? Answer with the date.`,
      expected: spellings(dates.plus(country.independence, days)).filter((one) => /\d{4}/.test(one)),
    };
  },
};
