// One town drawn from the seed: 13 avenues and 10 streets with a river between them, six parks and 260 places with addresses, hours and
// reviews. All lengths are metres; x runs east, y south.

import * as dates from "/kit/dates.js";
import { LAST, STREETS, TOWNS, person } from "/kit/words.js";

export const NAME = "Wayfold";
export const WIDTH = 2400,
  HEIGHT = 1800;
/** Pixels a metre at zoom 1 to 6. */
export const SCALES = [0.36, 0.5, 0.72, 1.05, 1.6, 2.4];
export const ZOOM_MAX = SCALES.length;
const PLACES = 260;
const AVENUES = [
  "Amber Avenue",
  "Bishop Avenue",
  "Cooper Avenue",
  "Diamond Avenue",
  "Easter Avenue",
  "Falcon Avenue",
  "Garnet Avenue",
  "Harvest Avenue",
  "Indigo Avenue",
  "Jasmine Avenue",
  "Knights Avenue",
  "Laurel Avenue",
  "Marble Avenue",
  "North Avenue",
  "Opal Avenue",
];

/** Kinds of places: how their names are made, how many of them there are, when they open. */
export const CATEGORIES = [
  {
    name: "Restaurant",
    hue: 18,
    weight: 7,
    hours: [660, 1320],
    names: [
      (a) => `${a}'s Table`,
      (a) => `Trattoria ${a}`,
      (a) => `The ${a} Grill`,
      (a) => `Bistro ${a}`,
      (a) => `${a} Noodle House`,
    ],
  },
  {
    name: "Café",
    hue: 30,
    weight: 5,
    hours: [420, 1140],
    names: [(a) => `Café ${a}`, (a) => `${a} Coffee`, (a) => `The ${a} Teahouse`, (a) => `${a} Bakery`],
  },
  {
    name: "Hotel",
    hue: 336,
    weight: 3,
    hours: [0, 1440],
    names: [(a) => `Hotel ${a}`, (a) => `${a} Inn`, (a) => `${a} Lodge`],
  },
  {
    name: "Museum",
    hue: 268,
    weight: 2.4,
    hours: [600, 1080],
    names: [(a) => `${a} Museum`, (a) => `${a} Gallery`, (a) => `House of ${a}`],
  },
  {
    name: "Pharmacy",
    hue: 152,
    weight: 2.4,
    hours: [480, 1140],
    names: [(a) => `${a} Pharmacy`, (a) => `Pharmacy ${a}`],
  },
  {
    name: "Supermarket",
    hue: 212,
    weight: 3,
    hours: [420, 1260],
    names: [(a) => `${a} Market`, (a) => `Fresh ${a}`, (a) => `${a} Foods`],
  },
  {
    name: "Cinema",
    hue: 300,
    weight: 1.4,
    hours: [780, 1410],
    names: [(a) => `${a} Cinema`, (a) => `The ${a} Screen`],
  },
  {
    name: "Library",
    hue: 190,
    weight: 1.6,
    hours: [540, 1140],
    names: [(a) => `${a} Library`, (a) => `${a} Reading Room`],
  },
  {
    name: "Bank",
    hue: 230,
    weight: 1.8,
    hours: [540, 990],
    names: [(a) => `${a} Savings Bank`, (a) => `Bank ${a}`],
  },
  {
    name: "Petrol station",
    hue: 50,
    weight: 1.6,
    hours: [300, 1380],
    names: [(a) => `${a} Petrol`, (a) => `${a} Fuel`],
  },
];
export const category = (name) => CATEGORIES.find((one) => one.name === name);
export const FEATURES = [
  "Wheelchair access",
  "Free Wi-Fi",
  "Parking",
  "Outdoor seating",
  "Takes cards",
  "Good for children",
];
export const MODES = [
  { id: "walk", name: "Walk", speed: 80, start: 0 },
  { id: "cycle", name: "Bicycle", speed: 240, start: 1 },
  { id: "drive", name: "Car", speed: 430, start: 3 },
];
export const mode = (id) => MODES.find((one) => one.id === id) ?? MODES[0];
export const LISTS = ["Favourites", "Want to go"];
const PRAISE = [
  "Friendly and quick.",
  "A place to come back to.",
  "Crowded at noon, calm in the evening.",
  "Cheaper than it looks.",
  "Hard to find, worth it.",
];
const BLAME = [
  "Waited far too long.",
  "Dearer than last year.",
  "Closed earlier than it said.",
  "Noisy and cold.",
  "Nobody knew anything.",
];
const SYLLABLES = [
  "Amberly",
  "Copper",
  "Silver",
  "Golden",
  "Old Mill",
  "Riverside",
  "Corner",
  "Blue Door",
  "Red Lion",
  "Green Gate",
  "Sunny",
  "Moonlight",
  "Harbor",
  "Castle",
  "Orchard",
  "Willow",
  "Swan",
  "Fox",
  "Heron",
  "Linden",
];

/** The whole town. */
export function makeWorld(draw) {
  const today = dates.plus("2027-02-01", draw.below(280)),
    [town] = draw.one(TOWNS);
  const across = lines(draw, draw.shuffled(STREETS).slice(0, 10), 90, HEIGHT - 90),
    down = lines(draw, draw.shuffled(AVENUES).slice(0, 13), 90, WIDTH - 90);
  // The river runs between two streets; four avenues cross it.
  const bank = draw.between(3, 5),
    river = { after: bank, top: across[bank].at + 34, bottom: across[bank + 1].at - 34 },
    bridges = new Set(
      draw.some(
        down.slice(1, -1).map((_, at) => at + 1),
        4,
      ),
    );
  const parks = draw
    .some(blocks(across, down, bank), 6)
    .map((block) => ({ ...block, name: `${draw.one(SYLLABLES)} Park` }));
  const world = { today, town, across, down, river, bridges, parks, draw };
  const names = new Set();
  world.places = Array.from({ length: PLACES }, (_, index) =>
    makePlace(world, draw.fork(`place/${index}`), index, names),
  );
  world.byId = new Map(world.places.map((place) => [place.id, place]));
  return world;
}

/** What a fresh visitor begins with. */
export const freshState = () => ({
  lists: LISTS.map((name) => ({ name, note: "", places: [] })),
  reviews: [],
  edits: [],
  recent: [],
  view: { x: WIDTH / 2, y: HEIGHT / 2, zoom: 1 },
  layer: "map",
});

function lines(draw, names, low, high) {
  const step = (high - low) / (names.length - 1);
  return names.map((name, index) => ({
    name,
    at: Math.round(low + index * step + (index && index < names.length - 1 ? draw.between(-22, 22) : 0)),
  }));
}

function blocks(across, down, bank) {
  return down
    .slice(1)
    .flatMap((right, x) =>
      across.slice(1).map((low, y) => ({
        x: down[x].at,
        y: across[y].at,
        w: right.at - down[x].at,
        h: low.at - across[y].at,
        row: y,
      })),
    )
    .filter(({ row }) => row !== bank);
}

function makePlace(world, draw, index, names) {
  const kind = draw.weighted(CATEGORIES.map((one) => [one, one.weight]));
  let name;
  do name = draw.one(kind.names)(draw.one([...LAST, ...SYLLABLES]));
  while (names.has(name));
  names.add(name);
  const spot = makeSpot(world, draw);
  const ratings = Array.from({ length: draw.between(5, 16) }, () =>
    draw.weighted([
      [5, 5],
      [4, 5],
      [3, 2.4],
      [2, 1.2],
      [1, 0.8],
    ]),
  );
  const [opens, closes] = kind.hours,
    shift = kind.name === "Hotel" ? 0 : draw.between(-2, 2) * 30;
  const rest =
    kind.name === "Hotel" || kind.name === "Petrol station"
      ? []
      : draw.weighted([
          [[], 4],
          [[0], 3],
          [[1], 2],
          [[0, 6], kind.name === "Bank" ? 9 : 0.6],
        ]);
  const hours = Array.from({ length: 7 }, (_, day) =>
    rest.includes(day)
      ? null
      : {
          opens: opens + (kind.hours[1] === 1440 ? 0 : shift),
          closes: Math.min(1440, closes + (kind.hours[1] === 1440 ? 0 : draw.between(-2, 3) * 30)),
        },
  );
  return {
    id: `p${index}`,
    name,
    kind: kind.name,
    hue: kind.hue,
    ...spot,
    ratings,
    rating: Math.round((ratings.reduce((sum, one) => sum + one, 0) / ratings.length) * 10) / 10,
    count: ratings.length * draw.between(3, 60),
    price: draw.between(1, 3),
    hours,
    phone: `0${draw.between(20, 98)} 555 ${draw.between(1000, 9999)}`,
    features: draw.some(FEATURES, draw.between(1, 5)),
    draw,
  };
}

/** A house on a street: where it is, and between which crossings. `line` counts streets (across) or avenues (down). */
function makeSpot({ across, down, river }, draw) {
  for (;;) {
    const along = draw.chance(0.55) ? "across" : "down",
      list = along === "across" ? across : down,
      other = along === "across" ? down : across;
    const line = draw.below(list.length),
      segment = draw.below(other.length - 1);
    if (along === "down" && segment === river.after) continue;
    const from = other[segment].at + 24,
      to = other[segment + 1].at - 24,
      at = draw.between(from, to),
      side = draw.chance() ? 1 : -1;
    const x = along === "across" ? at : list[line].at + side * 22,
      y = along === "across" ? list[line].at + side * 22 : at;
    if (y > river.top - 20 && y < river.bottom + 20) continue;
    return {
      x,
      y,
      along,
      line,
      segment,
      at,
      address: `${Math.round(at / 12) * 2 + (side > 0 ? 1 : 0)} ${list[line].name}`,
    };
  }
}

// ---- ways ----

/** As the crow flies. */
export const distance = (a, b) => Math.hypot(a.x - b.x, a.y - b.y);

/** The shortest way along the streets: { metres, points, legs: [{ street, metres, turn }] }. */
export function way(world, from, to) {
  const { across, down, river, bridges } = world;
  const key = (x, y) => y * down.length + x,
    point = (node) => ({ x: down[node % down.length].at, y: across[Math.floor(node / down.length)].at });
  const ends = (spot) =>
    spot.along === "across"
      ? [key(spot.segment, spot.line), key(spot.segment + 1, spot.line)]
      : [key(spot.line, spot.segment), key(spot.line, spot.segment + 1)];
  const onStreet = (spot) =>
    spot.along === "across" ? { x: spot.at, y: across[spot.line].at } : { x: down[spot.line].at, y: spot.at };
  const start = onStreet(from),
    goal = onStreet(to);
  if (from.along === to.along && from.line === to.line && from.segment === to.segment)
    return told(world, [start, goal]);
  const reached = new Map(
      ends(from).map((node) => [node, { metres: distance(start, point(node)), before: null }]),
    ),
    done = new Set();
  for (;;) {
    const open = [...reached]
      .filter(([node]) => !done.has(node))
      .sort(([, a], [, b]) => a.metres - b.metres)[0];
    if (!open) break;
    const [node, { metres }] = open,
      x = node % down.length,
      y = Math.floor(node / down.length);
    done.add(node);
    const next = [
      x > 0 ? node - 1 : null,
      x < down.length - 1 ? node + 1 : null,
      y > 0 && !(y - 1 === river.after && !bridges.has(x)) ? node - down.length : null,
      y < across.length - 1 && !(y === river.after && !bridges.has(x)) ? node + down.length : null,
    ];
    for (const other of next) {
      if (other === null) continue;
      const sum = metres + distance(point(node), point(other));
      if (sum < (reached.get(other)?.metres ?? Infinity)) reached.set(other, { metres: sum, before: node });
    }
  }
  const last = ends(to)
    .map((node) => ({ node, sum: reached.get(node).metres + distance(point(node), goal) }))
    .sort((a, b) => a.sum - b.sum)[0];
  const nodes = [];
  for (let node = last.node; node !== null; node = reached.get(node).before) nodes.unshift(point(node));
  return told(world, [start, ...nodes, goal]);
}

/** Points of a way as legs, one for each street. */
function told(world, points) {
  const legs = [];
  for (let at = 1; at < points.length; at++) {
    const a = points[at - 1],
      b = points[at],
      metres = distance(a, b);
    if (metres < 1) continue;
    const flat = a.y === b.y,
      street = flat
        ? world.across.find((line) => line.at === a.y).name
        : world.down.find((line) => line.at === a.x).name,
      heading = flat ? (b.x > a.x ? "east" : "west") : b.y > a.y ? "south" : "north";
    if (legs.at(-1)?.street === street) legs.at(-1).metres += metres;
    else
      legs.push({
        street,
        metres,
        heading,
        turn: legs.length ? turning(legs.at(-1).heading, heading) : null,
      });
  }
  return { metres: Math.round(legs.reduce((sum, { metres }) => sum + metres, 0)), points, legs };
}

function turning(before, after) {
  const order = ["north", "east", "south", "west"];
  return (order.indexOf(after) - order.indexOf(before) + 4) % 4 === 1 ? "right" : "left";
}

/** Minutes for so many metres, rounded up. */
export const minutes = (metres, modeId) => Math.ceil(metres / mode(modeId).speed) + mode(modeId).start;

// ---- finding ----

/** Whether a place is open on a weekday (0 is Sunday) at a full hour. */
export const isOpen = (place, day, hour) => {
  const hours = place.hours[day];
  return Boolean(hours) && hours.opens <= hour * 60 && hours.closes > hour * 60;
};

/** Places that fit, in order. `near` is a place that distances are measured from. */
export function search(
  world,
  { q = "", kind = "", rating = 0, features = [], day = null, hour = null, near = null, sort = "" },
) {
  const words = q.toLowerCase().split(/\s+/).filter(Boolean);
  const found = world.places.filter(
    (place) =>
      place !== near &&
      words.every((word) => `${place.name} ${place.kind} ${place.address}`.toLowerCase().includes(word)) &&
      (!kind || place.kind === kind) &&
      place.rating >= rating &&
      features.every((one) => place.features.includes(one)) &&
      (day === null || hour === null || isOpen(place, day, hour)),
  );
  const orders = {
    rating: (a, b) => b.rating - a.rating,
    reviews: (a, b) => b.count - a.count,
    distance: (a, b) => distance(near, a) - distance(near, b),
    name: (a, b) => (a.name < b.name ? -1 : 1),
  };
  const exact = (place) => (place.name.toLowerCase() === q.toLowerCase() ? 0 : 1);
  return found.sort(
    (a, b) =>
      exact(a) - exact(b) ||
      (orders[sort || (near ? "distance" : "reviews")] ?? orders.reviews)(a, b) ||
      (a.id < b.id ? -1 : 1),
  );
}

/** Reviews of a place, newest first. */
export function reviewsOf(place) {
  const draw = place.draw.fork("reviews");
  return place.ratings.map((rating, index) => ({
    rating,
    author: person(draw),
    text: draw.one(rating > 3 ? PRAISE : BLAME),
    age: 3 + index * 12 + draw.below(11),
  }));
}

/** "09:30" */
export const clock = (time) =>
  `${String(Math.floor(time / 60) % 24).padStart(2, "0")}:${String(time % 60).padStart(2, "0")}`;
export const metresTold = (metres) =>
  metres < 1000 ? `${Math.round(metres / 10) * 10} m` : `${(metres / 1000).toFixed(1)} km`;
