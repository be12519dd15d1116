// The dictionary's content, drawn from the seed: 360 learned compounds, each of a real root and a real ending, with uses, dates and examples.

import * as dates from "/kit/dates.js";
import { capital } from "/kit/dom.js";
import { TOWNS } from "/kit/words.js";

export const NAME = "Wordhoard";
const WORDS = 360;

// Root, what it stands for, its language and form there, how it is said.
const ROOTS = [
  ["hydro", "water", "Greek", "hydōr", "haɪdrə"],
  ["helio", "the sun", "Greek", "hēlios", "hiːliə"],
  ["photo", "light", "Greek", "phōs", "fəʊtə"],
  ["chrono", "time", "Greek", "khronos", "krɒnə"],
  ["cyno", "dogs", "Greek", "kyōn", "saɪnə"],
  ["ailuro", "cats", "Greek", "ailouros", "aɪlʊərə"],
  ["biblio", "books", "Greek", "biblion", "bɪbliə"],
  ["dendro", "trees", "Greek", "dendron", "dɛndrə"],
  ["litho", "stone", "Greek", "lithos", "lɪθə"],
  ["thalasso", "the sea", "Greek", "thalassa", "θəlæsə"],
  ["anemo", "wind", "Greek", "anemos", "ænɪmə"],
  ["pyro", "fire", "Greek", "pyr", "paɪrə"],
  ["cryo", "cold", "Greek", "kryos", "kraɪə"],
  ["ornitho", "birds", "Greek", "ornis", "ɔːnɪθə"],
  ["ichthyo", "fish", "Greek", "ikhthys", "ɪkθiə"],
  ["entomo", "insects", "Greek", "entomon", "ɛntəmə"],
  ["melo", "song", "Greek", "melos", "mɛlə"],
  ["oneiro", "dreams", "Greek", "oneiros", "ənaɪrə"],
  ["hypno", "sleep", "Greek", "hypnos", "hɪpnə"],
  ["osteo", "bones", "Greek", "osteon", "ɒstiə"],
  ["cardio", "the heart", "Greek", "kardia", "kɑːdiə"],
  ["dactylo", "fingers", "Greek", "daktylos", "dæktɪlə"],
  ["rhodo", "roses", "Greek", "rhodon", "rəʊdə"],
  ["xylo", "wood", "Greek", "xylon", "zaɪlə"],
  ["chryso", "gold", "Greek", "khrysos", "krɪsə"],
  ["seleno", "the moon", "Greek", "selēnē", "sɪliːnə"],
  ["astro", "the stars", "Greek", "astron", "æstrə"],
  ["nepho", "clouds", "Greek", "nephos", "nɛfə"],
  ["ombro", "rain", "Greek", "ombros", "ɒmbrə"],
  ["chiono", "snow", "Greek", "khiōn", "kaɪənə"],
  ["oro", "mountains", "Greek", "oros", "ɒrə"],
  ["potamo", "rivers", "Greek", "potamos", "pɒtəmə"],
  ["limno", "lakes", "Greek", "limnē", "lɪmnə"],
  ["agro", "fields", "Greek", "agros", "æɡrə"],
  ["ampelo", "vines", "Greek", "ampelos", "æmpɪlə"],
  ["oeno", "wine", "Greek", "oinos", "iːnə"],
  ["myco", "fungi", "Greek", "mykēs", "maɪkə"],
  ["hippo", "horses", "Greek", "hippos", "hɪpə"],
  ["halo", "salt", "Greek", "hals", "hælə"],
  ["speleo", "caves", "Greek", "spēlaion", "spiːliə"],
];

// Ending, part of speech, definitions, field, plural or comparative, how it is said, and the endings that mean the same or the opposite.
const ENDINGS = [
  [
    "phile",
    "noun",
    (x) => [`A person who loves ${x}.`, `An organism that thrives near or in ${x}.`],
    "General",
    "philes",
    "faɪl",
    [],
    ["phobe"],
  ],
  [
    "phobe",
    "noun",
    (x) => [`A person who fears or strongly dislikes ${x}.`],
    "General",
    "phobes",
    "fəʊb",
    [],
    ["phile"],
  ],
  [
    "phobia",
    "noun",
    (x) => [`An intense fear of ${x}.`, `(figurative) A marked dislike of anything to do with ${x}.`],
    "Medicine",
    "phobias",
    "fəʊbiə",
    [],
    ["mania", "philia"],
  ],
  ["philia", "noun", (x) => [`A fondness for ${x}.`], "General", "philias", "fɪliə", ["mania"], ["phobia"]],
  [
    "mania",
    "noun",
    (x) => [`An excessive enthusiasm for ${x}.`],
    "Medicine",
    "manias",
    "meɪniə",
    ["philia"],
    ["phobia"],
  ],
  [
    "logy",
    "noun",
    (x) => [`The scientific study of ${x}.`, `A treatise on ${x}.`],
    "Science",
    "logies",
    "lədʒi",
    ["graphy"],
    [],
  ],
  [
    "logist",
    "noun",
    (x) => [`A specialist in the scientific study of ${x}.`],
    "Science",
    "logists",
    "lədʒɪst",
    ["grapher"],
    [],
  ],
  [
    "graphy",
    "noun",
    (x) => [`The description or mapping of ${x}.`, `A written account of ${x}.`],
    "Science",
    "graphies",
    "ɡrəfi",
    ["logy"],
    [],
  ],
  [
    "grapher",
    "noun",
    (x) => [`A person who describes or maps ${x}.`],
    "Science",
    "graphers",
    "ɡrəfə",
    ["logist"],
    [],
  ],
  [
    "graph",
    "noun",
    (x) => [`An instrument that records changes in ${x}.`],
    "Technology",
    "graphs",
    "ɡrɑːf",
    ["meter"],
    [],
  ],
  [
    "meter",
    "noun",
    (x) => [`An instrument that measures ${x}.`],
    "Technology",
    "meters",
    "mɪtə",
    ["graph", "scope"],
    [],
  ],
  [
    "scope",
    "noun",
    (x) => [`An instrument for observing ${x}.`],
    "Technology",
    "scopes",
    "skəʊp",
    ["meter"],
    [],
  ],
  ["latry", "noun", (x) => [`The worship of ${x}.`], "Religion", "latries", "lətri", ["mania"], []],
  ["mancy", "noun", (x) => [`Divination by means of ${x}.`], "Religion", "mancies", "mænsi", [], []],
  [
    "cracy",
    "noun",
    (x) => [`Rule or influence exercised through control of ${x}.`, `A society ruled in this way.`],
    "Politics",
    "cracies",
    "krəsi",
    [],
    [],
  ],
  [
    "therapy",
    "noun",
    (x) => [`The treatment of illness by means of ${x}.`],
    "Medicine",
    "therapies",
    "θɛrəpi",
    [],
    [],
  ],
  [
    "philous",
    "adjective",
    (x) => [`Living or growing best near ${x}.`],
    "Biology",
    "more",
    "fɪləs",
    ["tropic"],
    ["phobic"],
  ],
  [
    "phobic",
    "adjective",
    (x) => [`Having an intense fear of ${x}.`, `Tending to avoid or repel ${x}.`],
    "Biology",
    "more",
    "fəʊbɪk",
    [],
    ["philous"],
  ],
  [
    "tropic",
    "adjective",
    (x) => [`Turning or growing towards ${x}.`],
    "Biology",
    "more",
    "trɒpɪk",
    ["philous"],
    ["phobic"],
  ],
  [
    "genic",
    "adjective",
    (x) => [`Produced by ${x}.`, `Giving rise to ${x}.`],
    "Science",
    "more",
    "dʒɛnɪk",
    [],
    [],
  ],
];
export const FIELDS = ["General", "Medicine", "Science", "Technology", "Biology", "Religion", "Politics"];
export const BANDS = ["Very rare", "Rare", "Uncommon", "Occasional"];

/** The settings by their names in the state: what each is called, and what it offers as [value, text]. */
export const SETTINGS = {
  accent: {
    title: "Pronunciation shown first",
    options: [
      ["uk", "British"],
      ["us", "American"],
    ],
  },
  size: {
    title: "Size of text",
    options: [
      ["small", "Small"],
      ["normal", "Normal"],
      ["large", "Large"],
    ],
  },
  tab: {
    title: "Part of an entry opened first",
    options: [
      ["origin", "Origin"],
      ["forms", "Forms"],
      ["thesaurus", "Synonyms"],
      ["translations", "Translations"],
    ],
  },
  rows: {
    title: "Browsing",
    options: [
      [20, "20 words a page"],
      [30, "30 words a page"],
      [50, "50 words a page"],
    ],
  },
};

const SENTENCES = {
  noun: [
    (w, town) => `The lecture on ${w} in ${town} drew a larger crowd than anyone expected.`,
    (w, town) => `Nobody in ${town} had heard of ${w} before the museum opened.`,
    (w, town) => `Her third book turns from the history of ${town} to ${w}.`,
    (w, town) => `In ${town} there is a fine line between curiosity and ${w}.`,
    (w, town) => `He mentioned ${w} twice in his letter to the editor from ${town}.`,
    (w, town) => `An old engraving in the town hall of ${town} shows a ${w}.`,
  ],
  adjective: [
    (w, town) => `The slopes around ${town} are covered with ${w} plants.`,
    (w, town) => `It is a strongly ${w} species, rarely seen outside ${town}.`,
    (w, town) => `The report from ${town} describes the process as ${w}.`,
    (w, town) => `In ${town} they had not expected such ${w} behaviour.`,
  ],
};

/** The whole dictionary. */
export function makeWorld(draw) {
  const today = dates.plus("2027-02-01", draw.below(280));
  const bands = BANDS.map((band) => [band, draw.fork(`band/${band}`).between(1, 12)]),
    tongues = draw.fork("tongues");
  const pairs = draw.some(
    ROOTS.flatMap((root) => ENDINGS.map((ending) => [root, ending])),
    WORDS,
  );
  const words = pairs
    .map(([root, ending]) => makeWord(root, ending, { draw: draw.fork(root[0] + ending[0]), bands, tongues }))
    .sort((a, b) => (a.word < b.word ? -1 : 1));
  const byWord = new Map(words.map((entry) => [entry.word, entry]));
  for (const entry of words) {
    const known = (endings) =>
      endings
        .map((ending) => byWord.get(entry.root[0] + ending))
        .filter(Boolean)
        .map(({ word }) => word);
    entry.synonyms = known(entry.ending[6]);
    entry.antonyms = known(entry.ending[7]);
  }
  const daily = draw.fork("daily").shuffled(words);
  return {
    today,
    words,
    byWord,
    settings: arrange(draw.fork("settings")),
    ofDay: (day) => daily[((dates.between("2026-01-01", day) % daily.length) + daily.length) % daily.length],
    draw,
  };
}

/** In which order the page of the settings shows them, and the options of each: [name, options]. */
const arrange = (draw) =>
  draw.shuffled(Object.keys(SETTINGS)).map((name) => [name, draw.shuffled(SETTINGS[name].options)]);

/** What a fresh visitor begins with. */
export const freshState = () => ({
  lists: [{ name: "My words", words: [] }],
  accent: "uk",
  size: "normal",
  tab: "origin",
  rows: 30,
  quizzes: [],
  suggestions: [],
});

function makeWord(root, ending, { draw, bands, tongues }) {
  const [stem, meaning, language, form, said] = root,
    [tail, part, define, field, forms, saidTail] = ending;
  const word = stem + tail;
  const examples = draw
    .some(SENTENCES[part], draw.between(2, 4))
    .map((make) => make(word, draw.one(TOWNS)[0]));
  return {
    word,
    root,
    ending,
    part,
    field,
    meaning,
    definitions: define(meaning),
    year: draw.between(1590, 1968),
    band: draw.weighted(bands),
    examples,
    syllables: word.replace(/([aeiouy]+)(?=[^aeiouy]+[aeiouy])/g, "$1·"),
    uk: `/ˈ${said}ˌ${saidTail}/`,
    us: `/ˈ${said}ˌ${saidTail}/`
      .replace("əʊ", "oʊ")
      .replace("ɒ", "ɑː")
      .replace(/tə\/$/, "tər/")
      .replace(/fə\/$/, "fər/"),
    etymology: `From ${language} ${form} “${meaning}” and the ending -${tail}.`,
    forms:
      part === "noun"
        ? { Plural: stem + forms }
        : { Comparative: `more ${word}`, Superlative: `most ${word}` },
    language,
    form,
    translations: { ...translations(stem, tail), ...inTongues(stem, tail, tongues) },
    synonyms: [],
    antonyms: [],
  };
}

const TAILS = {
  French: {
    philia: "philie",
    phobia: "phobie",
    mania: "manie",
    logy: "logie",
    logist: "logue",
    graphy: "graphie",
    grapher: "graphe",
    graph: "graphe",
    meter: "mètre",
    latry: "lâtrie",
    mancy: "mancie",
    cracy: "cratie",
    therapy: "thérapie",
    philous: "phile",
    phobic: "phobe",
    tropic: "tropique",
    genic: "génique",
  },
  German: {
    phile: "phile",
    philia: "philie",
    phobia: "phobie",
    phobe: "phobe",
    mania: "manie",
    logy: "logie",
    logist: "loge",
    graphy: "grafie",
    grapher: "graf",
    graph: "graf",
    scope: "skop",
    latry: "latrie",
    mancy: "mantie",
    cracy: "kratie",
    therapy: "therapie",
    philous: "phil",
    phobic: "phob",
    tropic: "trop",
    genic: "gen",
  },
  Spanish: {
    phile: "filo",
    philia: "filia",
    phobia: "fobia",
    phobe: "fobo",
    mania: "manía",
    logy: "logía",
    logist: "logo",
    graphy: "grafía",
    grapher: "grafo",
    graph: "grafo",
    meter: "metro",
    scope: "scopio",
    latry: "latría",
    mancy: "mancia",
    cracy: "cracia",
    therapy: "terapia",
    philous: "filo",
    phobic: "fóbico",
    tropic: "trópico",
    genic: "génico",
  },
};

function translations(stem, tail) {
  const plain = stem
    .replaceAll("ph", "f")
    .replaceAll("th", "t")
    .replaceAll("rh", "r")
    .replaceAll("ch", "c")
    .replaceAll("y", "i")
    .replace("oe", "e");
  const stems = { French: stem, German: capital(stem), Spanish: plain };
  return Object.fromEntries(
    Object.entries(TAILS).map(([language, tails]) => [language, stems[language] + (tails[tail] ?? tail)]),
  );
}

/** Languages that nobody knows: what their syllables begin with, their vowels, and what a word's parts end with. */
export const TONGUES = {
  Karsundic: [
    ["k", "sk", "v", "br", "h", "st", "l", "d", "gr", "f", "t", "m"],
    ["a", "o", "u", "e", "ei"],
    ["n", "r", "l", "k"],
  ],
  Ostranian: [
    ["z", "dr", "m", "p", "sl", "b", "v", "n", "t", "kr", "j", "l"],
    ["a", "e", "i", "o", "u"],
    ["v", "n", "k", "sh"],
  ],
  Velmoran: [
    ["t", "m", "l", "s", "c", "p", "v", "r", "n", "fl", "b", "g"],
    ["a", "e", "i", "o", "ia"],
    ["l", "n", "r", "s"],
  ],
};

/** The word in those languages: each root and each ending has a form in each of them, which is drawn for all words alike. */
const inTongues = (stem, tail, draw) =>
  Object.fromEntries(
    Object.keys(TONGUES).map((language) => [
      language,
      spoken(draw.fork(`${language}/${stem}`), language, 2) +
        spoken(draw.fork(`${language}/${tail}`), language, 1),
    ]),
  );

function spoken(draw, language, syllables) {
  const [starts, vowels, ends] = TONGUES[language];
  return (
    Array.from({ length: syllables }, () => draw.one(starts) + draw.one(vowels)).join("") + draw.one(ends)
  );
}

/** Ten suggestions for what has been typed. */
export const suggest = (world, text) => {
  const wanted = text.toLowerCase();
  return [
    ...world.words.filter(({ word }) => word.startsWith(wanted)),
    ...world.words.filter(({ word }) => !word.startsWith(wanted) && word.includes(wanted)),
  ].slice(0, 8);
};

/** Words that fit the browser's filters, in order. */
export function browse(world, { letter = "", part = "", field = "", band = "", sort = "az" }) {
  const found = world.words.filter(
    (entry) =>
      (!letter || entry.word.startsWith(letter)) &&
      (!part || entry.part === part) &&
      (!field || entry.field === field) &&
      (!band || entry.band === band),
  );
  if (sort === "oldest") found.sort((a, b) => a.year - b.year);
  if (sort === "newest") found.sort((a, b) => b.year - a.year);
  if (sort === "length") found.sort((a, b) => b.word.length - a.word.length || (a.word < b.word ? -1 : 1));
  return found;
}

export const QUIZZES = 24;

/** Five questions, each with four definitions to choose from. */
export function quizOf(world, number) {
  const draw = world.draw.fork(`quiz/${number}`);
  return draw.some(world.words, 5).map((entry) => {
    const wrong = draw
      .some(
        world.words.filter((one) => one.definitions[0] !== entry.definitions[0]),
        3,
      )
      .map(({ definitions }) => definitions[0]);
    return {
      word: entry.word,
      right: entry.definitions[0],
      choices: draw.shuffled([entry.definitions[0], ...wrong]),
    };
  });
}
