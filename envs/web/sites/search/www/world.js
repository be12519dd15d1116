// The web that the search engine knows, drawn from the seed: 28 subjects with 12 pages each on 30 sites, 168 pictures, and a panel of facts and
// four questions for each subject. All of it is invented.

import * as dates from "/kit/dates.js";
import { slug } from "/kit/dom.js";
import { people } from "/kit/words.js";

export const NAME = "Lantern";
const SUBJECTS = 28,
  PAGES_EACH = 12,
  PICTURES_EACH = 6;
const PLACES = [
  "Orsay Valley",
  "Lake Miriam",
  "Port Halden",
  "Mount Kelter",
  "Brisa Island",
  "Tamsin Forest",
  "Cape Orlow",
  "Selby Marsh",
  "Varn Canyon",
  "Hollow Bay",
  "Ister Plain",
  "Quill River",
  "Amber Coast",
  "Dunmere",
  "Fallow Hills",
  "Greyfield",
  "Nightjar Moor",
  "Pellworth",
  "Ravensea",
  "Silver Strait",
];
const KINDS = [
  {
    kind: "Festival",
    form: (place) => `${place} Festival`,
    terms: ["Founded", "Visitors a year", "Stages", "Days"],
  },
  {
    kind: "Railway",
    form: (place) => `${place} Railway`,
    terms: ["Opened", "Length in km", "Stations", "Top speed in km/h"],
  },
  {
    kind: "Lighthouse",
    form: (place) => `${place} Lighthouse`,
    terms: ["Built", "Height in m", "Steps", "Range in km"],
  },
  { kind: "Museum", form: (place) => `${place} Museum`, terms: ["Opened", "Objects", "Rooms", "Staff"] },
  {
    kind: "Observatory",
    form: (place) => `${place} Observatory`,
    terms: ["Built", "Mirror in cm", "Elevation in m", "Nights a year"],
  },
  {
    kind: "Nature reserve",
    form: (place) => `${place} Reserve`,
    terms: ["Founded", "Area in km²", "Bird species", "Trails"],
  },
  {
    kind: "Bridge",
    form: (place) => `${place} Bridge`,
    terms: ["Opened", "Length in m", "Cables", "Height in m"],
  },
];
const RANGES = {
  Founded: [1880, 2005],
  Opened: [1860, 2010],
  Built: [1790, 1990],
  "Visitors a year": [4000, 98000],
  Stages: [3, 19],
  Days: [3, 21],
  "Length in km": [24, 480],
  Stations: [8, 64],
  "Top speed in km/h": [60, 190],
  "Height in m": [18, 190],
  Steps: [96, 420],
  "Range in km": [22, 58],
  Objects: [1200, 88000],
  Rooms: [12, 90],
  Staff: [14, 260],
  "Mirror in cm": [40, 640],
  "Elevation in m": [700, 3900],
  "Nights a year": [120, 310],
  "Area in km²": [14, 890],
  "Bird species": [60, 340],
  Trails: [5, 48],
  "Length in m": [140, 2900],
  Cables: [16, 180],
};
const HOSTS = [
  "harbornotes",
  "theweekender",
  "slowtravel",
  "fieldguide",
  "localpaper",
  "oldmaps",
  "weekendwalks",
  "openarchive",
  "nightsky",
  "craftforum",
  "askaround",
  "familytrips",
  "railfan",
  "citydiary",
  "naturelog",
  "longread",
  "budgettours",
  "thequarterly",
  "photowall",
  "soundsgood",
  "islandpost",
  "mountainpress",
  "rivertalk",
  "theguidebook",
  "smallmuseums",
  "publicworks",
  "travellersforum",
  "dailybeacon",
  "morningwire",
  "countynews",
];
const NEWS = HOSTS.slice(-3).concat("localpaper", "islandpost", "mountainpress"),
  FORUMS = ["craftforum", "askaround", "travellersforum", "rivertalk"];
const ANGLES = [
  "A visitor's guide to the {s}",
  "What nobody tells you about the {s}",
  "The {s} in numbers",
  "A day at the {s} with children",
  "How the {s} was saved",
  "Photographs from the {s}",
  "The {s} after the storm",
  "Is the {s} worth the trip?",
  "Getting to the {s} without a car",
  "The people who run the {s}",
  "New rules at the {s}",
  "The {s} in winter",
  "Ten years of the {s}",
  "Volunteers wanted at the {s}",
  "The {s} before dawn",
  "A letter from the {s}",
  "What the {s} costs the town",
  "The oldest map of the {s}",
  "Lost and found at the {s}",
  "Where to eat near the {s}",
  "The {s} in old postcards",
  "Who paid for the {s}?",
  "The {s} seen from the water",
  "An evening at the {s}",
  "The first plans of the {s}",
  "Why the {s} closes early",
  "The {s} for people in a hurry",
  "A winter's work at the {s}",
  "Rumours about the {s}",
  "The sounds of the {s}",
];
const COUNTS = [
  ["The car park has room for {n} cars", "parking spaces", "How many cars fit in the car park"],
  ["A ticket costs {n} crowns", "ticket", "How many crowns does a ticket cost"],
  ["The café serves {n} meals a day", "meals", "How many meals a day does the café serve"],
  ["Some {n} volunteers help at weekends", "volunteers", "How many volunteers help at weekends"],
  ["The last count found {n} benches", "benches", "How many benches did the last count find"],
  [
    "It took {n} weeks to repair the roof",
    "weeks of repair",
    "How many weeks did the repair of the roof take",
  ],
];
const FILLERS = [
  "Most people come in spring, when the light is long and the paths are dry.",
  "The old office still keeps the first guest book.",
  "Bring good shoes and something warm for the evening.",
  "Opinions differ, but few leave disappointed.",
  "The view from the upper end is the one on every postcard.",
  "A bus runs twice a day, and once on Sundays.",
];
const MOODS = ["quiet", "crowded", "family", "budget", "historic", "remote"];
export const COLOURS = [
  ["red", 4],
  ["yellow", 46],
  ["green", 130],
  ["blue", 212],
  ["purple", 280],
];
export const SPANS = [
  ["", "Any time"],
  ["30", "Past month"],
  ["90", "Past 3 months"],
  ["365", "Past year"],
];
/** What the settings offer, and what may be said of a panel of facts. */
export const SIZES = [10, 20, 30, 50];
export const SAFETY = ["Strict", "Moderate", "Off"];
/** Where results open and what becomes of searches: what a setting is called that is off, and one that is on. */
export const TABS = ["In the same tab", "In a new tab"];
export const KEEPS = ["Not kept", "Kept in the history"];
export const VOTES = ["helpful", "wrong"];
export const KIND_TABS = [
  ["", "All"],
  ["news", "News"],
  ["forum", "Forums"],
  ["images", "Images"],
];

/** The whole web. */
export function makeWorld(draw) {
  const today = dates.plus("2027-03-01", draw.below(240)),
    authors = people(draw.fork("authors"), 40),
    names = new Set();
  const subjects = Array.from({ length: SUBJECTS }, (_, index) =>
    makeSubject(draw.fork(`subject/${index}`), names, authors),
  );
  // How often pages call a place quiet, crowded and so on differs from world to world.
  const moods = MOODS.map((mood) => [mood, draw.fork(`mood/${mood}`).between(1, 12)]);
  const pages = subjects.flatMap((subject) =>
    draw
      .fork(`angles/${subject.name}`)
      .some(ANGLES, PAGES_EACH)
      .map((angle, at) =>
        makePage(draw.fork(`${subject.name}/${at}`), subject, angle, at, { today, authors, moods }),
      ),
  );
  const pictures = subjects.flatMap((subject) =>
    Array.from({ length: PICTURES_EACH }, (_, at) =>
      makePicture(draw.fork(`picture/${subject.name}/${at}`), subject, at),
    ),
  );
  const byId = new Map(pages.map((page) => [page.id, page]));
  return { today, subjects, pages, pictures, byId, settings: arrange(draw.fork("settings")) };
}

/** In which order the page of the settings shows them, and the options of each. */
function arrange(draw) {
  const options = { size: SIZES, safe: SAFETY, tab: [false, true], keep: [false, true] };
  return draw.shuffled(Object.entries(options)).map(([name, list]) => [name, draw.shuffled(list)]);
}

/** What a fresh visitor begins with. */
export const freshState = () => ({
  history: [],
  saved: [],
  settings: { size: 10, safe: "Moderate", tab: false, keep: true },
  votes: {},
});

function makeSubject(draw, names, authors) {
  let name, kind, place;
  do {
    kind = draw.one(KINDS);
    place = draw.one(PLACES);
    name = kind.form(place);
  } while (names.has(name));
  names.add(name);
  const facts = kind.terms.map((term) => [term, draw.between(...RANGES[term])]),
    founder = draw.one(authors);
  return {
    name,
    kind: kind.kind,
    place,
    facts,
    founder,
    hue: draw.below(360),
    about: `The ${name} is a ${kind.kind.toLowerCase()} near ${place}, begun by ${founder}.`,
  };
}

function makePage(draw, subject, angle, at, { today, authors, moods: frequent }) {
  const host = at < 2 ? draw.one(NEWS) : at < 4 ? draw.one(FORUMS) : draw.one(HOSTS),
    kind = NEWS.includes(host) ? "news" : FORUMS.includes(host) ? "forum" : "page";
  const title = angle.replace("{s}", subject.name),
    figures = draw
      .some(COUNTS, 3)
      .map(([text, term, question]) => ({ term, question, value: draw.between(13, 960), text })),
    mood = draw.weighted(frequent),
    moods = [mood, draw.weighted(frequent.filter(([other]) => other !== mood))];
  const body = [
    `${subject.about} ${draw.one(FILLERS)}`,
    `${figures.map(({ text, value }) => text.replace("{n}", value)).join(". ")}.`,
    `${draw.one(FILLERS)} We would call it ${moods[0]} and ${moods[1]}.`,
  ];
  return {
    id: slug(`${title}-${at}`),
    title,
    subject: subject.name,
    host: `${host}.example`,
    kind,
    day: dates.plus(today, -Math.floor(draw.number() ** 2 * 900) - 1),
    author: at === 5 ? subject.founder : draw.one(authors),
    figures,
    moods,
    body,
    replies: draw.between(0, 80),
  };
}

function makePicture(draw, subject, at) {
  const [colour, hue] = draw.one(COLOURS),
    width = draw.between(6, 60) * 100 + draw.below(90);
  return {
    id: slug(`${subject.name}-${at}`),
    title: `${subject.name}: ${draw.one(["view from the south", "at dawn", "after rain", "from the air", "the entrance", "an old postcard"])} (${at + 1})`,
    subject: subject.name,
    colour,
    hue,
    width,
    height: Math.round(width * draw.one([0.56, 0.66, 0.75])),
    host: `${draw.one(HOSTS)}.example`,
  };
}

/** A query in parts: plain words, "exact phrases", -without, site:host. */
export function parse(q) {
  const phrases = [...q.matchAll(/"([^"]+)"/g)].map(([, text]) => text.toLowerCase());
  const rest = q
    .replace(/"[^"]*"/g, " ")
    .toLowerCase()
    .split(/\s+/)
    .filter(Boolean);
  return {
    phrases,
    site: rest.find((word) => word.startsWith("site:"))?.slice(5) ?? "",
    without: rest.filter((word) => /^-./.test(word)).map((word) => word.slice(1)),
    words: rest
      .filter((word) => !/^-|^site:/.test(word))
      .map((word) => word.replace(/[^\p{L}\p{N}']/gu, ""))
      .filter((word) => word && !["the", "a", "of", "in", "at", "to", "and"].includes(word)),
  };
}

const textOf = (page) => `${page.title} ${page.body.join(" ")} ${page.author} ${page.host}`.toLowerCase();

/** Pages for a query, best first. Every word must occur; those of the title weigh most, then how fresh the page is. */
export function search(world, { q, kind = "", days = 0, host = "", sort = "" }) {
  const { words, phrases, without, site } = parse(q);
  if (!words.length && !phrases.length && !site) return [];
  const scored = world.pages
    .filter(
      (page) =>
        (!kind || page.kind === kind) &&
        (!days || dates.between(page.day, world.today) <= days) &&
        (!host || page.host === host) &&
        (!site || page.host === site || page.host.startsWith(`${site}.`)),
    )
    .map((page) => ({ page, text: textOf(page) }))
    .filter(
      ({ text }) =>
        words.every((word) => text.includes(word)) &&
        phrases.every((phrase) => text.includes(phrase)) &&
        !without.some((word) => text.includes(word)),
    )
    .map(({ page }) => {
      const title = page.title.toLowerCase();
      return {
        page,
        score:
          (title === q.toLowerCase() ? 50 : 0) +
          words.concat(phrases).reduce((sum, word) => sum + (title.includes(word) ? 5 : 0), 0) -
          dates.between(page.day, world.today) / 400,
      };
    });
  const order =
    sort === "date"
      ? (a, b) => (a.page.day < b.page.day ? 1 : a.page.day > b.page.day ? -1 : 0)
      : (a, b) => b.score - a.score;
  return scored.sort((a, b) => order(a, b) || (a.page.id < b.page.id ? -1 : 1)).map(({ page }) => page);
}

/** Pictures for a query. */
export function pictures(world, { q, colour = "", size = 0, sort = "" }) {
  const { words } = parse(q);
  const found = words.length
    ? world.pictures.filter(
        (one) =>
          words.every((word) => one.title.toLowerCase().includes(word)) &&
          (!colour || one.colour === colour) &&
          one.width >= size,
      )
    : [];
  return sort === "size" ? [...found].sort((a, b) => b.width * b.height - a.width * a.height) : found;
}

/** The subject that a query names; null if there is none. */
export function subjectOf(world, q) {
  const { words } = parse(q);
  return words.length
    ? (world.subjects.find(({ name }) => {
        const own = name.toLowerCase().split(" ");
        return own.every((word) => words.includes(word));
      }) ?? null)
    : null;
}

/** Questions people ask about a subject; the answers come from the pages about it. */
export function questionsOf(world, subject) {
  const pages = world.pages.filter((page) => page.subject === subject.name),
    asked = new Set();
  return pages
    .flatMap((page) => page.figures.map((figure) => ({ ...figure, page })))
    .filter(({ term }) => !asked.has(term) && asked.add(term))
    .slice(0, 4)
    .map(({ question, value, text, page }) => ({
      question: `${question} at the ${subject.name}?`,
      value,
      answer: `${text.replace("{n}", value)}.`,
      page,
    }));
}
