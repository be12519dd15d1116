// What a visitor can change, each a function of the state, plain arguments and the world. A transition throws where no page would do it.

import { SAFETY, SIZES, VOTES } from "/world.js";

const HISTORY = 40;

const mustBePage = (world, id) => {
  if (!world.byId.has(id)) throw new Error("no such page");
};

export const transitions = {
  /** A search is made: it comes first in the history. */
  "search.note"(now, { q }) {
    if (typeof q !== "string" || !q || q !== q.trim().replace(/\s+/g, " "))
      throw new Error("this is not what a search looks for");
    now.history = [q, ...now.history.filter((one) => one !== q)].slice(0, HISTORY);
  },

  "history.forget"(now, { q }) {
    if (!now.history.includes(q)) throw new Error("this was not searched");
    now.history = now.history.filter((one) => one !== q);
  },

  "history.clear"(now) {
    now.history = [];
  },

  "result.save"(now, { id }, world) {
    mustBePage(world, id);
    if (now.saved.includes(id)) throw new Error("this result is saved already");
    now.saved.push(id);
  },

  "result.remove"(now, { id }, world) {
    mustBePage(world, id);
    now.saved = now.saved.filter((one) => one !== id);
  },

  "subject.vote"(now, { name, word }, world) {
    if (!world.subjects.some((subject) => subject.name === name)) throw new Error("no such subject");
    if (!VOTES.includes(word)) throw new Error("no such vote");
    now.votes[name] = word;
  },

  "settings.save"(now, { size, safe, tab, keep }) {
    if (!SIZES.includes(size) || !SAFETY.includes(safe)) throw new Error("no such setting");
    if (typeof tab !== "boolean" || typeof keep !== "boolean") throw new Error("no such setting");
    now.settings = { size, safe, tab, keep };
  },
};
