// The model hub's content, drawn from the seed: 180 models and 72 data sets of 26 makers, with cards, files, versions, discussions, figures of a
// leaderboard, and rows of the data sets.

import * as dates from "/kit/dates.js";
import { FIRST, LAST } from "/kit/words.js";

export const NAME = "Shelfmark";
const MODELS = 180,
  DATASETS = 72;

export const TASKS = [
  { name: "Text generation", hue: 222, unit: "tokens" },
  { name: "Translation", hue: 160, unit: "sentences" },
  { name: "Summarisation", hue: 196, unit: "articles" },
  { name: "Image classification", hue: 24, unit: "images" },
  { name: "Object detection", hue: 4, unit: "images" },
  { name: "Speech recognition", hue: 276, unit: "recordings" },
  { name: "Text to speech", hue: 312, unit: "sentences" },
  { name: "Table analysis", hue: 48, unit: "tables" },
];
export const taskOf = (name) => TASKS.find((one) => one.name === name);
export const LIBRARIES = ["Gradient", "Tensorkit", "Layers", "Burin"];
export const LICENSES = ["open-weights-1", "research-only", "share-alike-2", "commercial-ok", "public"];
export const LANGUAGES = ["English", "Spanish", "French", "German", "Japanese", "Swahili"];
export const BENCHMARKS = ["Reason-12", "Reading-4k", "Sums", "World-QA", "Codelet"];
export const PURPOSES = ["Research", "Teaching", "Product", "Personal"];
const MAKERS = [
  "aurora-lab",
  "birch-ai",
  "coastal",
  "deepfen",
  "eleven-owls",
  "fathom",
  "grainfield",
  "halftone",
  "inkwell",
  "jackdaw",
  "kestrel-research",
  "lumen-works",
  "mossbank",
  "northsea",
  "openhearth",
  "plainview",
  "quartzite",
  "riverstone",
];
const STEMS = [
  "Otter",
  "Finch",
  "Marlin",
  "Cedar",
  "Comet",
  "Basalt",
  "Heron",
  "Juniper",
  "Lynx",
  "Nimbus",
  "Orchid",
  "Pebble",
  "Quokka",
  "Raven",
  "Sable",
  "Tundra",
];
const SHAPES = ["base", "small", "large", "mini", "chat", "multi", "fast", "v2", "v3"];
const SETS = [
  "letters",
  "reviews",
  "recipes",
  "radio",
  "streets",
  "invoices",
  "birds",
  "courtroom",
  "weather",
  "subtitles",
  "gardens",
  "timetables",
];
const QUESTIONS = [
  "Which prompt was used for",
  "Wrong scores for",
  "Licence of",
  "Out of memory with",
  "Plans for",
  "How to fine-tune",
];
const ANSWERS = [
  "Thanks, fixed in the last commit.",
  "We will look at it this week.",
  "It works for me with the newest library.",
  "See the card, under limits.",
  "Could you share the settings?",
];
const LABELS = ["positive", "negative", "neutral", "mixed"];
const SUBJECTS = [
    "The delivery",
    "A small garden",
    "This recipe",
    "The evening train",
    "Her letter",
    "The old radio",
    "A rainy street",
    "The invoice",
  ],
  ENDS = [
    "came two days late",
    "was better than expected",
    "needs more salt",
    "stood empty",
    "arrived without a word",
    "broke on the first day",
    "made everybody laugh",
    "was paid twice",
  ];

/** The whole hub. */
export function makeWorld(draw) {
  const today = dates.plus("2027-03-05", draw.below(240)),
    users = draw
      .fork("users")
      .some(FIRST, 26)
      .map((first, at) => `${first.toLowerCase()}-${LAST[(at * 2) % LAST.length].toLowerCase()}`),
    makers = [...MAKERS, ...users.slice(0, 8)],
    names = new Set();
  const unique = (make) => {
    let name;
    do name = make();
    while (names.has(name));
    names.add(name);
    return name;
  };
  const sets = Array.from({ length: DATASETS }, (_, index) =>
    makeSet(draw.fork(`set/${index}`), { makers, unique, today }),
  );
  const models = Array.from({ length: MODELS }, (_, index) =>
    makeModel(draw.fork(`model/${index}`), { makers, users, unique, today, sets }),
  );
  return {
    today,
    users,
    makers,
    models,
    sets,
    draw,
    byId: new Map([...models, ...sets].map((one) => [one.id, one])),
  };
}

/** What a fresh visitor begins with. */
export const freshState = () => ({
  likes: [],
  downloads: [],
  discussions: [],
  replies: [],
  access: {},
  collections: [],
  recent: [],
});

function makeSet(draw, { makers, unique, today }) {
  const name = unique(
      () =>
        `${draw.one(SETS)}-${draw.one(["tiny", "open", "1m", "clean", "raw", "eval", "world"])}-${draw.between(2, 99)}`,
    ),
    maker = draw.one(makers),
    task = draw.one(TASKS).name;
  return {
    id: `${maker}/${name}`,
    name,
    maker,
    kind: "set",
    task,
    rows: draw.between(900, 980000),
    size: draw.decimal(0.1, 96),
    license: draw.one(LICENSES),
    languages: draw.some(LANGUAGES, draw.between(1, 3)),
    downloads: Math.round(10 ** draw.decimal(2, 5.4, 4)),
    likes: draw.between(2, 900),
    updated: dates.plus(today, -draw.between(0, 700)),
    draw,
  };
}

function makeModel(draw, { makers, users, unique, today, sets }) {
  const millions = draw.weighted([
      [draw.between(20, 400), 4],
      [draw.between(400, 3000), 4],
      [draw.between(3000, 70000), 3],
    ]),
    shown = sizeTold(millions).replace(".", "_");
  const name = unique(() => `${draw.one(STEMS)}-${shown}-${draw.one(SHAPES)}`),
    maker = draw.one(makers),
    task = draw.one(TASKS).name,
    own = sets.filter((set) => set.task === task);
  const scores = Object.fromEntries(BENCHMARKS.map((one) => [one, draw.decimal(18, 93)]));
  return {
    id: `${maker}/${name}`,
    name,
    maker,
    kind: "model",
    task,
    millions,
    library: draw.one(LIBRARIES),
    license: draw.one(LICENSES),
    languages: draw.some(LANGUAGES, draw.between(1, 4)),
    downloads: Math.round(10 ** draw.decimal(1.6, 6.2, 4)),
    likes: draw.between(1, 4200),
    updated: dates.plus(today, -draw.between(0, 600)),
    scores,
    average:
      Math.round((Object.values(scores).reduce((sum, one) => sum + one, 0) / BENCHMARKS.length) * 10) / 10,
    trained: own.length ? draw.one(own).id : null,
    gated: draw.chance(0.22),
    context: draw.one([512, 2048, 4096, 8192, 32768]),
    hours: draw.between(12, 9800),
    users,
    draw,
  };
}

/** "350M", "7.2B" of millions of parameters. */
export const sizeTold = (millions) => (millions < 1000 ? `${millions}M` : `${(millions / 1000).toFixed(1)}B`);
export const bytesTold = (megabytes) =>
  megabytes < 1
    ? `${Math.round(megabytes * 1000)} kB`
    : megabytes < 1000
      ? `${megabytes.toFixed(1)} MB`
      : `${(megabytes / 1000).toFixed(2)} GB`;

/** Files of a model or a data set: { name, size in MB, message, day }. */
export function filesOf(item) {
  const draw = item.draw.fork("files"),
    message = () =>
      draw.one([
        "Upload the first version",
        "Fix the tokenizer",
        "New weights after more training",
        "Update the card",
        "Add a licence",
      ]);
  const shards =
      item.kind === "model"
        ? Math.min(6, Math.ceil((item.millions * 2) / 9000))
        : Math.min(6, Math.ceil(item.size / 20)),
    total = item.kind === "model" ? item.millions * 2 : item.size * 1000;
  const big = Array.from({ length: shards }, (_, at) => [
    item.kind === "model"
      ? shards > 1
        ? `weights-${at + 1}-of-${shards}.bin`
        : "weights.bin"
      : `part-${at}.rows`,
    Math.round((total / shards) * draw.decimal(0.9, 1.1, 2) * 10) / 10,
  ]);
  const small =
    item.kind === "model"
      ? [
          ["README.md", draw.decimal(0.003, 0.02, 3)],
          ["config.json", 0.001],
          ["vocabulary.txt", draw.decimal(0.2, 4.8)],
          ["LICENSE", 0.011],
        ]
      : [
          ["README.md", draw.decimal(0.003, 0.02, 3)],
          ["schema.json", 0.002],
          ["LICENSE", 0.011],
        ];
  return [...small, ...big].map(([name, size]) => ({
    name,
    size,
    message: message(),
    day: dates.plus(item.updated, -draw.between(0, 90)),
  }));
}

/** What config.json of a model says. */
export function configOf(model) {
  const draw = model.draw.fork("config");
  return {
    architecture: model.name.split("-")[0].toLowerCase(),
    parameters_millions: model.millions,
    layers: draw.between(6, 80),
    hidden_size: draw.between(4, 64) * 128,
    heads: draw.one([8, 12, 16, 32]),
    vocabulary_size: draw.between(12, 160) * 1000 + draw.between(1, 99),
    context_length: model.context,
    dropout: draw.one([0, 0.05, 0.1]),
  };
}

/** Discussions of a model, newest first: { number, title, author, day, open, replies }. */
export function discussionsOf(model) {
  const draw = model.draw.fork("discussions"),
    size = draw.between(3, 9);
  return Array.from({ length: size }, (_, at) => ({
    number: size - at,
    title: `${draw.one(QUESTIONS)} ${draw.one(["the card", "long inputs", "the small version", "batch mode", "my language"])}`,
    author: draw.one(model.users),
    day: dates.plus(model.updated, -at * 13 - draw.below(12)),
    open: draw.chance(0.6),
    replies: Array.from({ length: draw.between(1, 4) }, () => ({
      author: draw.one([model.maker, ...model.users]),
      text: draw.one(ANSWERS),
    })),
  }));
}

/** Rows of a data set, as its viewer shows them. */
export function rowsOf(set) {
  const draw = set.draw.fork("rows");
  return Array.from({ length: 120 }, (_, at) => {
    const text = `${draw.one(SUBJECTS)} ${draw.one(ENDS)}.`;
    return {
      row: at,
      text,
      label: draw.one(LABELS),
      split: draw.weighted([
        ["train", 6],
        ["validation", 2],
        ["test", 2],
      ]),
      score: draw.between(1, 100),
    };
  });
}

/** Models or data sets that fit, in order. */
export function search(
  world,
  {
    kind = "models",
    q = "",
    task = "",
    library = "",
    licenses = [],
    language = "",
    max = 0,
    sort = "downloads",
  },
) {
  const words = q
    .toLowerCase()
    .split(/[\s/]+/)
    .filter(Boolean);
  const found = world[kind].filter(
    (item) =>
      words.every((word) => item.id.toLowerCase().includes(word)) &&
      (!task || item.task === task) &&
      (!library || item.library === library) &&
      (!licenses.length || licenses.includes(item.license)) &&
      (!language || item.languages.includes(language)) &&
      (!max || item.millions <= max),
  );
  const orders = {
    downloads: (a, b) => b.downloads - a.downloads,
    likes: (a, b) => b.likes - a.likes,
    updated: (a, b) => (a.updated < b.updated ? 1 : a.updated > b.updated ? -1 : 0),
    small: (a, b) => (a.millions ?? a.rows) - (b.millions ?? b.rows),
  };
  return found.sort((a, b) => (orders[sort] ?? orders.downloads)(a, b) || (a.id < b.id ? -1 : 1));
}
