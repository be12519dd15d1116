// The electronics maker's content, drawn from the seed: 40 devices in five lines with everything they can be had with, 60 accessories, 36
// shops, 30 support pages, and devices that somebody owns.

import * as dates from "/kit/dates.js";
import { STREETS, TOWNS, person } from "/kit/words.js";
import { slug } from "/kit/dom.js";

export const NAME = "Oriel";

export const LINES = [
  {
    id: "phones",
    title: "Phones",
    name: "Pico",
    told: "Small enough to forget, good enough not to.",
    base: [399, 1099],
    screen: [5.4, 7.6],
    weight: [138, 262],
    battery: [17, 34],
    storage: [128, 256, 512, 1024],
    memory: [6, 8, 12],
  },
  {
    id: "laptops",
    title: "Laptops",
    name: "Folio",
    told: "Work where the light is.",
    base: [899, 2399],
    screen: [12.4, 16.8],
    weight: [980, 2240],
    battery: [9, 22],
    storage: [256, 512, 1024, 2048],
    memory: [8, 16, 32, 64],
  },
  {
    id: "tablets",
    title: "Tablets",
    name: "Pane",
    told: "A window you carry.",
    base: [329, 1199],
    screen: [7.9, 13.2],
    weight: [296, 710],
    battery: [8, 16],
    storage: [64, 128, 256, 512],
    memory: [4, 8, 16],
  },
  {
    id: "watches",
    title: "Watches",
    name: "Orbit",
    told: "The day at a glance.",
    base: [179, 799],
    screen: [1.2, 2.1],
    weight: [22, 64],
    battery: [18, 96],
    storage: [16, 32, 64],
    memory: [1, 2],
  },
  {
    id: "audio",
    title: "Audio",
    name: "Chime",
    told: "Quiet, please.",
    base: [79, 549],
    screen: null,
    weight: [42, 2900],
    battery: [6, 48],
    storage: [8, 16],
    memory: [1],
  },
];
export const line = (id) => LINES.find((one) => one.id === id);
const MODELS_EACH = 8;
/** What models are called after the name of their line; which of them there are, and which is the cheapest, is drawn. */
const MODELS = [
  "Acorn",
  "Alder",
  "Amber",
  "Aspen",
  "Basalt",
  "Birch",
  "Brook",
  "Cedar",
  "Cinder",
  "Cliff",
  "Clover",
  "Cobalt",
  "Comet",
  "Cove",
  "Delta",
  "Dune",
  "Ember",
  "Fern",
  "Fjord",
  "Flint",
  "Grove",
  "Harbor",
  "Heath",
  "Heron",
  "Indigo",
  "Island",
  "Jasper",
  "Juniper",
  "Kestrel",
  "Lagoon",
  "Larch",
  "Linden",
  "Maple",
  "Mesa",
  "Opal",
  "Pebble",
  "Quartz",
  "Ridge",
  "Sequoia",
  "Tundra",
  "Umber",
  "Vale",
  "Willow",
  "Zephyr",
];
export const COLOURS = {
  Graphite: "#3a3d42",
  Snow: "#eef0f2",
  Sky: "#9cc4e4",
  Moss: "#6f8f72",
  Coral: "#ef8a76",
  Sand: "#dcc9a8",
  Plum: "#6c4a6e",
  Copper: "#b87a55",
};
export const PLANS = [
  { id: "none", name: "No plan", price: 0 },
  { id: "care", name: "Care, 2 years", price: 79 },
  { id: "care-plus", name: "Care Plus, 3 years with theft", price: 149 },
];
export const SERVICES = [
  "Repair while you wait",
  "Data transfer",
  "Trade-in",
  "Courses",
  "Business desk",
  "Engraving",
];
export const TIMES = ["09:30", "11:00", "12:30", "14:00", "15:30", "17:00"];
export const CONDITIONS = [
  { id: "new", name: "Like new", factor: 1 },
  { id: "good", name: "Good, light scratches", factor: 0.8 },
  { id: "worn", name: "Worn, deep scratches", factor: 0.55 },
  { id: "broken", name: "Broken screen", factor: 0.2 },
];
export const FAULTS = [
  { name: "Screen", share: 0.28 },
  { name: "Battery", share: 0.12 },
  { name: "Camera", share: 0.18 },
  { name: "Keyboard or buttons", share: 0.15 },
  { name: "Will not start", share: 0.35 },
];
const KITS = [
  ["Case", 39],
  ["Charger", 45],
  ["Cable", 19],
  ["Stand", 59],
  ["Screen glass", 29],
  ["Sleeve", 49],
];
const PROBLEMS = [
  [
    "does not switch on",
    "Hold the power button for {n} seconds, then connect the charger and wait for {m} minutes.",
  ],
  ["gets too warm", "Take it out of its case and let it rest for {n} minutes below {m} degrees."],
  [
    "loses its connection",
    "Switch the radio off for {n} seconds; if that does not help, forget the network and wait for {m} seconds before joining again.",
  ],
  [
    "is slow after an update",
    "Leave it connected for {n} hours; the index is rebuilt {m} minutes after the first start.",
  ],
  ["does not charge beyond a limit", "Below {m} degrees charging stops at {n} percent to spare the battery."],
  ["shows lines on the screen", "Lower the brightness to {n} percent and compare after {m} minutes."],
];

/** The whole site. */
export function makeWorld(draw) {
  const today = dates.plus("2027-02-08", draw.below(270));
  const products = LINES.flatMap((one) =>
    draw
      .fork(`models/${one.id}`)
      .some(MODELS, MODELS_EACH)
      .map((model, index) => makeProduct(one, model, index, draw.fork(`${one.id}/${index}`))),
  );
  const accessories = LINES.flatMap((one) =>
    KITS.flatMap(([kit, price]) =>
      draw
        .some(
          products.filter(({ line: own }) => own === one.id),
          2,
        )
        .map((product) => ({
          id: slug(`${kit}-${product.name}`),
          name: `${kit} for ${product.name}`,
          kit,
          fits: product.id,
          line: one.id,
          price: price + draw.between(0, 6) * 5,
          colour: draw.one(Object.keys(COLOURS)),
        })),
    ),
  );
  const world = {
    today,
    products,
    accessories,
    draw,
    byId: new Map([...products, ...accessories].map((one) => [one.id, one])),
  };
  world.stores = TOWNS.flatMap(([town, region], index) =>
    draw
      .fork(`streets/${town}`)
      .some(STREETS, index % 4 === 0 ? 3 : 2)
      .map((street, at) => makeStore(draw.fork(`store/${index}/${at}`), { town, region, street, at })),
  );
  world.articles = draw
    .fork("articles")
    .shuffled(
      LINES.flatMap((one) =>
        PROBLEMS.map((problem, at) => makeArticle(draw.fork(`article/${one.id}/${at}`), one, problem)),
      ),
    );
  // One of them is old enough to be out of its warranty, one is new.
  world.owned = [
    [60, 300],
    [1130, 1500],
    [100, 900],
  ].map((age, at) => makeOwned(world, draw.fork(`owned/${at}`), age));
  return world;
}

/** What a fresh visitor begins with. */
export const freshState = () => ({
  bag: [],
  orders: [],
  appointments: [],
  repairs: [],
  trade: null,
  compare: [],
  helpful: {},
});

function makeProduct(one, model, index, draw) {
  const [low, high] = one.base,
    share = index / (MODELS_EACH - 1);
  const between = ([from, to], digits) => draw.decimal(from, to, digits);
  const step = share * draw.decimal(0.7, 0.9, 2) + draw.decimal(0, 0.1, 2);
  const price = Math.round((low + (high - low) * step) / 10) * 10 + 9;
  const sizes = one.storage.slice(draw.between(0, 1)),
    memory = one.memory.slice(0, draw.between(1, one.memory.length));
  return {
    id: slug(`${one.name}-${model}`),
    name: `${one.name} ${model}`,
    line: one.id,
    price,
    released: dates.day(draw.between(2024, 2026), draw.between(1, 12), draw.between(1, 28)),
    colours: draw.some(Object.keys(COLOURS), draw.between(3, 5)),
    storage: sizes.map((size, at) => ({ size, extra: at * (one.id === "laptops" ? 200 : 100) })),
    memory: memory.map((size, at) => ({ size, extra: at * (one.id === "laptops" ? 180 : 90) })),
    screen: one.screen ? between(one.screen, 1) : null,
    weight: Math.round(between(one.weight, 0)),
    battery: Math.round(between(one.battery, 0)),
    water: draw.one([0, 1, 2, 10, 30]),
    camera: one.screen && one.id !== "watches" ? draw.between(8, 64) : null,
    rating: draw.decimal(3.4, 4.9),
    charge: draw.between(25, 140),
    warranty: draw.one([12, 24, 36]),
    tradeIn: Math.round(price * draw.decimal(0.3, 0.6, 2)),
  };
}

/** What is known of a device: [name, text] or, with `unit`, [name, number, unit]. */
export const specs = (product) =>
  [
    product.screen ? ["Screen", product.screen, "inches"] : null,
    ["Weight", product.weight, "g"],
    ["Battery life", product.battery, "hours"],
    ["Full charge", product.charge, "minutes"],
    ["Water resistance", product.water, "m"],
    product.camera ? ["Camera", product.camera, "megapixels"] : null,
    ["Warranty", product.warranty, "months"],
  ].filter(Boolean);

export const gigabytes = (size) => (size >= 1024 ? `${size / 1024} TB` : `${size} GB`);

/** The price of a device as it is chosen. */
export function priceOf(product, { storage, memory, plan = "none", engraving = "" }) {
  const extra = (list, size) => (list.find((one) => one.size === Number(size)) ?? list[0]).extra;
  return (
    product.price +
    extra(product.storage, storage) +
    extra(product.memory, memory) +
    PLANS.find(({ id }) => id === plan).price +
    (engraving ? 19 : 0)
  );
}

/** The price of a line of the bag. */
export function linePrice(world, line) {
  const product = world.byId.get(line.id);
  return (product.kit ? product.price : priceOf(product, line)) * line.quantity;
}

/** What the bag costs, less the trade-in if it is used. */
export const bagTotal = (world, { bag, trade }) =>
  Math.max(
    0,
    bag.reduce((sum, line) => sum + linePrice(world, line), 0) - (trade?.applied ? trade.value : 0),
  );

/** The number of an order, by how many were placed before it. */
export const orderNumber = (world, before) =>
  `OR-${world.draw.fork(`order/${before}`).between(100000, 999999)}`;

function makeStore(draw, { town, region, street, at }) {
  const opens = draw.one([540, 570, 600]),
    rest = draw.weighted([
      [0, 5],
      [1, 2],
      [null, 3],
    ]);
  return {
    id: slug(`${town}-${at}`),
    name: `Oriel ${street.replace(/ (Street|Avenue|Road|Lane|Court|Drive|Row|Way|Close|Hill|Bank)$/, "")}, ${town}`,
    town,
    region,
    street: `${draw.between(2, 190)} ${street}`,
    phone: `0${draw.between(20, 98)} 555 ${draw.between(1000, 9999)}`,
    distance: draw.decimal(0.3, 24),
    services: draw.some(SERVICES, draw.between(2, 5)),
    opens,
    closes: draw.one([1080, 1140, 1200]),
    rest,
  };
}

function makeArticle(draw, one, [problem, text]) {
  const n = draw.between(4, 55),
    m = draw.between(6, 80),
    seen = draw.between(3, 95);
  return {
    id: slug(`${one.name}-${problem}`),
    title: `If your ${one.name} ${problem}`,
    line: one.id,
    text: text.replace("{n}", n).replace("{m}", m),
    n,
    m,
    seen,
    steps: [
      "Save your work first.",
      text.replace("{n}", n).replace("{m}", m),
      "Start it again and look for updates.",
      "If nothing helps, ask for a repair.",
    ],
  };
}

function makeOwned(world, draw, age) {
  const product = draw.one(world.products),
    bought = dates.plus(world.today, -draw.between(...age));
  return {
    serial: `OR${draw.between(100, 999)}${draw.one([..."KLMNP"])}${draw.between(1000, 9999)}`,
    product: product.id,
    bought,
    ends: addMonths(bought, product.warranty),
    owner: person(draw),
  };
}

function addMonths(day, months) {
  const all = dates.year(day) * 12 + dates.month(day) - 1 + months,
    y = Math.floor(all / 12),
    m = (all % 12) + 1;
  return dates.day(y, m, Math.min(dates.dayOfMonth(day), dates.daysInMonth(y, m)));
}

/** Devices of a line that fit, in order. */
export function search(world, { id, max = 0, storage = 0, battery = 0, colour = "", sort = "price" }) {
  const found = world.products.filter(
    (product) =>
      product.line === id &&
      (!max || product.price <= max) &&
      (!storage || product.storage.some(({ size }) => size >= storage)) &&
      product.battery >= battery &&
      (!colour || product.colours.includes(colour)),
  );
  const orders = {
    price: (a, b) => a.price - b.price,
    dear: (a, b) => b.price - a.price,
    light: (a, b) => a.weight - b.weight,
    rating: (a, b) => b.rating - a.rating,
    newest: (a, b) => (a.released < b.released ? 1 : -1),
  };
  return found.sort((a, b) => (orders[sort] ?? orders.price)(a, b) || (a.id < b.id ? -1 : 1));
}

/** Shops of a town with certain services, nearest to its centre first. */
export const storesOf = (world, town, services = []) =>
  world.stores
    .filter((store) => store.town === town && services.every((one) => store.services.includes(one)))
    .sort((a, b) => a.distance - b.distance);

/** What the maker pays for a device: its worth by condition, less without charger, a little more for a fuller memory. */
export function tradeValue(product, { condition, storage, charger }) {
  const more = product.storage.findIndex(({ size }) => size === Number(storage)) * 20;
  return Math.max(
    5,
    Math.round(
      (product.tradeIn * CONDITIONS.find(({ id }) => id === condition).factor + more - (charger ? 0 : 15)) /
        5,
    ) * 5,
  );
}

/** What a repair costs: nothing within the warranty, else a share of the price. */
export const repairPrice = (product, fault, inWarranty) =>
  inWarranty ? 0 : Math.round((product.price * FAULTS.find(({ name }) => name === fault).share) / 5) * 5;

/** Times that are taken at a shop on a day. */
export const takenTimes = (world, store, day) =>
  new Set(world.draw.fork(`times/${store.id}/${day}`).some(TIMES, 3));
export const isShut = (store, day) => dates.weekdayIndex(day) === store.rest;
