// What the answer engine knows, drawn from the seed: 96 countries on eight continents, 288 cities, 60 foods, 60 minerals, 60 stars. All
// invented, so that nobody knows an answer without looking it up.

import * as dates from "/kit/dates.js";
import { capital } from "/kit/dom.js";

export const NAME = "Deduca";
const CONTINENTS = 8,
  PER_CONTINENT = 12,
  CITIES_EACH = 3;
const STARTS = [
  "Vel",
  "Tan",
  "Or",
  "Kar",
  "Mir",
  "Bes",
  "Dal",
  "Fen",
  "Gar",
  "Hal",
  "Ist",
  "Jor",
  "Lom",
  "Nar",
  "Pel",
  "Quer",
  "Ras",
  "Sal",
  "Tev",
  "Ul",
  "Var",
  "Wen",
  "Yar",
  "Zor",
  "Cam",
  "Eld",
];
const MIDDLES = ["a", "e", "i", "o", "u", "ar", "en", "ol", "im", "und"];
const COUNTRY_ENDS = ["mora", "nia", "stan", "land", "via", "ria", "donia", "que", "sk", "tania"];
const CITY_ENDS = ["burg", "port", "ville", "grad", "haven", "stad", "polis", "mouth", "dale", "ford"];
const FOODS = [
  "almond",
  "barley",
  "chestnut",
  "date",
  "elderberry",
  "fig",
  "ginger",
  "hazelnut",
  "lentil",
  "millet",
  "oat",
  "plum",
  "quince",
  "rye",
  "sesame",
];
const DISHES = ["bread", "soup", "porridge", "cake", "dumplings", "stew", "biscuits", "spread"];
const MINERAL_ENDS = ["ite", "ine", "spar", "olite", "anite"];
const COLOURS = ["green", "violet", "grey", "honey yellow", "brick red", "colourless", "black", "sky blue"];
const SYSTEMS = ["cubic", "hexagonal", "trigonal", "monoclinic", "triclinic", "tetragonal"];
const LETTERS = ["Alpha", "Beta", "Gamma", "Delta", "Epsilon", "Zeta", "Eta", "Theta"];
const SIGNS = [
  "Corvini",
  "Lyncis",
  "Aquarae",
  "Phocae",
  "Navis",
  "Turris",
  "Falconis",
  "Arboris",
  "Lupae",
  "Fontis",
  "Cervi",
  "Montis",
];
const CURRENCIES = ["crown", "dinar", "florin", "mark", "peso", "shilling", "thaler", "lira"];

/** A draw of words that never repeats one. */
function naming() {
  const used = new Set();
  return (make) => {
    let name;
    do name = make();
    while (used.has(name));
    used.add(name);
    return name;
  };
}
const word = (draw, ends) =>
  draw.one(STARTS) +
  draw.one(MIDDLES) +
  (draw.chance(0.3) ? draw.one(["n", "l", "r", "s"]) + draw.one(["a", "e", "o"]) : "") +
  draw.one(ends);

/** Kinds of things and what is known of each. A column is a number unless it has `text`; `imperial` is [unit, factor]. */
export const DATASETS = [
  {
    id: "countries",
    one: "country",
    group: "continent",
    columns: [
      { key: "continent", title: "Continent", text: true },
      { key: "capital", title: "Capital", text: true },
      { key: "population", title: "Population", unit: "people" },
      { key: "area", title: "Area", unit: "km²", imperial: ["sq mi", 0.386102] },
      { key: "density", title: "Density", unit: "people per km²" },
      { key: "gdp", title: "GDP", unit: "billion $" },
      { key: "highest", title: "Highest point", unit: "m", imperial: ["ft", 3.28084] },
      { key: "currency", title: "Currency", text: true },
      { key: "independence", title: "Independence", text: true, day: true },
    ],
  },
  {
    id: "cities",
    one: "city",
    group: "country",
    columns: [
      { key: "country", title: "Country", text: true },
      { key: "population", title: "Population", unit: "people" },
      { key: "elevation", title: "Elevation", unit: "m", imperial: ["ft", 3.28084] },
      { key: "founded", title: "Founded", unit: "", plain: true },
    ],
  },
  {
    id: "foods",
    one: "food",
    group: "kind",
    columns: [
      { key: "kind", title: "Kind", text: true },
      { key: "energy", title: "Energy", unit: "kcal per 100 g" },
      { key: "protein", title: "Protein", unit: "g per 100 g" },
      { key: "fat", title: "Fat", unit: "g per 100 g" },
      { key: "sugar", title: "Sugar", unit: "g per 100 g" },
      { key: "fibre", title: "Fibre", unit: "g per 100 g" },
    ],
  },
  {
    id: "minerals",
    one: "mineral",
    group: "system",
    columns: [
      { key: "system", title: "Crystal system", text: true },
      { key: "hardness", title: "Hardness", unit: "Mohs" },
      { key: "weight", title: "Specific weight", unit: "g/cm³" },
      { key: "colour", title: "Colour", text: true },
    ],
  },
  {
    id: "stars",
    one: "star",
    group: "constellation",
    columns: [
      { key: "constellation", title: "Constellation", text: true },
      { key: "distance", title: "Distance", unit: "light years" },
      { key: "magnitude", title: "Magnitude", unit: "" },
      { key: "mass", title: "Mass", unit: "suns" },
      { key: "planets", title: "Planets", unit: "" },
    ],
  },
];
export const dataset = (id) => DATASETS.find((one) => one.id === id);

/** All that is known. */
export function makeWorld(draw) {
  const today = dates.plus("2027-02-01", draw.below(280)),
    name = naming();
  const continents = Array.from({ length: CONTINENTS }, () =>
    name(() => word(draw, ["ria", "ca", "dia", "sia"])),
  );
  const countries = continents.flatMap((continent) =>
    Array.from({ length: PER_CONTINENT }, () => makeCountry(draw, continent, name)),
  );
  const cities = countries.flatMap((country) =>
    Array.from({ length: CITIES_EACH }, (_, index) => makeCity(draw, country, index, name)),
  );
  const foods = Array.from({ length: 60 }, () => makeFood(draw, name));
  const minerals = Array.from({ length: 60 }, () => ({
    name: name(() => capital(word(draw, MINERAL_ENDS))),
    system: draw.one(SYSTEMS),
    hardness: draw.decimal(1, 9.5),
    weight: draw.decimal(1.8, 8.9, 2),
    colour: draw.one(COLOURS),
  }));
  const stars = Array.from({ length: 60 }, () => makeStar(draw, name));
  const tables = { countries, cities, foods, minerals, stars };
  for (const rows of Object.values(tables)) rows.sort((a, b) => (a.name < b.name ? -1 : 1));
  const things = new Map(
    DATASETS.flatMap(({ id }) => tables[id].map((row) => [row.name.toLowerCase(), { id, row }])),
  );
  return { today, draw, continents, tables, things };
}

/** What a fresh visitor begins with. */
export const freshState = () => ({
  history: [],
  notebook: [],
  downloads: [],
  settings: { units: "metric", digits: 6 },
});

function makeCountry(draw, continent, name) {
  const population = draw.between(120, 9800) * 10 ** draw.between(3, 4) + draw.between(100, 999),
    area = draw.between(900, 98000) * 10;
  return {
    name: name(() => word(draw, COUNTRY_ENDS)),
    continent,
    capital: name(() => word(draw, CITY_ENDS)),
    population,
    area,
    density: Math.round((population / area) * 10) / 10,
    gdp: draw.decimal(3, 1900),
    highest: draw.between(180, 7400),
    currency: draw.one(CURRENCIES),
    independence: dates.day(draw.between(1790, 1985), draw.between(1, 12), draw.between(1, 28)),
  };
}

function makeCity(draw, country, index, name) {
  return {
    name: index ? name(() => word(draw, CITY_ENDS)) : country.capital,
    country: country.name,
    population: draw.between(index ? 20 : 300, index ? 900 : 6000) * 1000 + draw.between(11, 989),
    elevation: draw.between(2, 2900),
    founded: draw.between(640, 1890),
  };
}

function makeFood(draw, name) {
  const [protein, fat, sugar, fibre] = [
    draw.decimal(1, 24),
    draw.decimal(0.2, 30),
    draw.decimal(0.5, 38),
    draw.decimal(0.3, 12),
  ];
  const kind = draw.one(DISHES);
  return {
    name: name(() =>
      capital(`${draw.one(["", "", "roasted ", "dark ", "wild ", "mountain "])}${draw.one(FOODS)} ${kind}`),
    ),
    kind: capital(kind),
    energy: Math.round(protein * 4 + fat * 9 + sugar * 4 + draw.between(20, 160)),
    protein,
    fat,
    sugar,
    fibre,
  };
}

function makeStar(draw, name) {
  let sign;
  return {
    name: name(() => {
      sign = draw.one(SIGNS);
      return `${draw.one(LETTERS)} ${sign}`;
    }),
    constellation: sign,
    distance: draw.decimal(4, 900),
    magnitude: draw.decimal(0.4, 6.4, 2),
    mass: draw.decimal(0.2, 14, 2),
    planets: draw.between(0, 9),
  };
}
