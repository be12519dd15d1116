// What a visitor can change, each a function of the state, plain arguments and the world. A transition throws where no page would do it.

import { LAYERS } from "/layers.js";
import { HEIGHT, WIDTH, ZOOM_MAX } from "/world.js";

export const VISITS = ["In the morning", "At noon", "In the evening", "At the weekend"];
export const WRONG = ["Phone number", "Opening hours", "Address", "It has closed for good"];
/** What pages show first: how near, and how many places they may show so. Without a place it is the whole town. */
const LOOKS = {
  town: { zoom: 1, least: 0, most: 0 },
  route: { zoom: 2, least: 2, most: 3 },
  near: { zoom: 3, least: 1, most: 1 },
  place: { zoom: 4, least: 1, most: 1 },
};
const RECENT = 4;

const filled = (what) => (value) => (value ? "" : `Enter ${what}`);
const oneOf = (options) => (value) => (options.includes(value) ? "" : "Choose one of the list");

/** What the forms ask for: a field's problem, or "". The pages show it, the transitions refuse by it. */
export const reviewRules = {
  text: (value) => (value.length >= 10 ? "" : "Write at least ten letters"),
  when: oneOf(VISITS),
};
export const ratingProblem = (rating) => ([1, 2, 3, 4, 5].includes(rating) ? "" : "Give one to five stars");
export const editRules = { what: oneOf(WRONG), right: filled("what is right") };
export const noteRules = { note: filled("a note") };

export const transitions = {
  "place.open"(now, { id }, world) {
    placeOf(world, id);
    now.recent = [id, ...now.recent.filter((one) => one !== id)].slice(0, RECENT);
  },

  "map.look"(now, { at, ids }, world) {
    const look = Object.hasOwn(LOOKS, at) ? LOOKS[at] : null;
    refuse(!look || ids.length < look.least || ids.length > look.most, "no page looks at the map so");
    const places = ids.map((id) => placeOf(world, id)),
      middle = (axis, length) =>
        places.length ? places.reduce((sum, place) => sum + place[axis], 0) / places.length : length / 2;
    now.view = { ...now.view, x: middle("x", WIDTH), y: middle("y", HEIGHT), zoom: look.zoom };
  },

  "map.zoom"(now, { by }) {
    refuse(by !== 1 && by !== -1, "the map is zoomed step by step");
    now.view.zoom = within(now.view.zoom + by, 1, ZOOM_MAX);
  },

  "map.drag"(now, { x, y }) {
    refuse(!Number.isFinite(x) || !Number.isFinite(y), "not a way to drag the map");
    now.view.x = within(now.view.x + x, 0, WIDTH);
    now.view.y = within(now.view.y + y, 0, HEIGHT);
  },

  "map.layer"(now, { layer }) {
    refuse(!Object.hasOwn(LAYERS, layer), "there is no such layer");
    now.layer = layer;
  },

  "review.post"(now, { id, rating, text, when }, world) {
    placeOf(world, id);
    refuse(ratingProblem(rating), ratingProblem(rating));
    check(reviewRules, { text, when });
    now.reviews.unshift({ id, rating, text, when });
  },

  "edit.suggest"(now, { id, what, right }, world) {
    placeOf(world, id);
    check(editRules, { what, right });
    now.edits.push({ id, what, right });
  },

  "list.create"(now, { name, id }, world) {
    placeOf(world, id);
    check({ name: filled("a name") }, { name });
    refuse(
      now.lists.some((one) => one.name === name),
      "there is a list of this name",
    );
    now.lists.push({ name, note: "", places: [id] });
  },

  "list.toggle"(now, { name, id }, world) {
    placeOf(world, id);
    const list = listOf(now, name);
    list.places = list.places.includes(id) ? without(list.places, id) : [...list.places, id];
  },

  "list.remove"(now, { name, id }) {
    const list = listOf(now, name);
    refuse(!list.places.includes(id), "the list does not hold this place");
    list.places = without(list.places, id);
  },

  "list.note"(now, { name, note }) {
    check(noteRules, { note });
    listOf(now, name).note = note;
  },
};

function refuse(reason, why) {
  if (reason) throw new Error(why);
}

/** Refuses values of a form that its page would not send. */
function check(rules, values) {
  for (const [name, rule] of Object.entries(rules)) {
    refuse(typeof values[name] !== "string", `${name} is no text`);
    refuse(rule(values[name]), `${name}: ${rule(values[name])}`);
  }
}

function placeOf(world, id) {
  const place = world.byId.get(id);
  refuse(!place, "there is no such place");
  return place;
}

function listOf(now, name) {
  const list = now.lists.find((one) => one.name === name);
  refuse(!list, "there is no such list");
  return list;
}

const without = (list, id) => list.filter((one) => one !== id);
const within = (value, least, most) => Math.min(most, Math.max(least, value));
