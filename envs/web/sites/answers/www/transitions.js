// What a visitor of the answer engine can change, each a function of the state, plain arguments and the world. A transition throws where no
// page would do it.

import { slug } from "/kit/dom.js";
import { insist } from "/kit/rules.js";
import { ask } from "/engine.js";
import { dataset } from "/world.js";

export const UNIT_SYSTEMS = [
  { value: "metric", text: "Metric (km, m)" },
  { value: "imperial", text: "Imperial (miles, feet)" },
];
export const DIGITS = [4, 6, 8, 10];
const LONGEST_HISTORY = 60;

/** A text as the pages make it of what was typed: no space at its ends, none twice. */
const isTidy = (text) => typeof text === "string" && text === text.trim().replace(/\s+/g, " ");

/** A panel of the answer to a question. */
function panelOf(now, world, q, id) {
  insist(isTidy(q) && q, "nothing was asked");
  const panel = ask(world, q, now.settings)?.panels.find((one) => one.id === id);
  insist(panel, "this question has no such panel");
  return panel;
}

function entryOf(now, { q, id }) {
  const entry = now.notebook.find((one) => one.q === q && one.id === id);
  insist(entry, "this is not in the notebook");
  return entry;
}

/** The name of the file that holds a table, narrowed to a group or not. */
export const tableFile = (set, group) => `${set}${group ? `-of-${slug(group)}` : ""}.csv`;

/** Where files come from: for a page and what was chosen there, the file's name and the choice as the state keeps it. */
const FILES = {
  data(now, { set, group, name, by, least }, world) {
    const kind = dataset(set);
    insist(kind, "no such table");
    const isGroup = world.tables[set].some((row) => row[kind.group] === group);
    insist(group === "" || isGroup, "no such group");
    insist(isTidy(name) && name === name.toLowerCase(), "no name is like this");
    const isCounted = kind.columns.some(({ key, text }) => key === by && !text);
    insist(isCounted, "no such column of numbers");
    insist(Number.isFinite(least), "the least is no number");
    return { file: tableFile(set, group), choice: { set, group, name, by, least } };
  },

  ask(now, { q, panel }, world) {
    const { table } = panelOf(now, world, q, panel);
    insist(table?.file, "this panel has no file");
    return { file: table.file, choice: { q, panel } };
  },

  notebook(now) {
    insist(now.notebook.length, "the notebook is empty");
    const entries = now.notebook.map(({ q, id, note }) => ({ q, id, note }));
    return { file: "notebook.csv", choice: { entries } };
  },
};

export const transitions = {
  "history.add"(now, { q }) {
    insist(isTidy(q) && q, "nothing was asked");
    insist(now.history[0] !== q, "this was asked just before");
    now.history = [q, ...now.history.filter((one) => one !== q)].slice(0, LONGEST_HISTORY);
  },

  "history.forget"(now, { q }) {
    insist(now.history.includes(q), "this is not in the history");
    now.history = now.history.filter((one) => one !== q);
  },

  /** Saves a panel's text to the notebook, or takes it out again. */
  "notebook.toggle"(now, { q, id }, world) {
    if (now.notebook.some((entry) => entry.q === q && entry.id === id)) {
      now.notebook = now.notebook.filter((entry) => entry.q !== q || entry.id !== id);
      return;
    }
    const { title, text } = panelOf(now, world, q, id);
    insist(text, "this panel has no text to save");
    now.notebook.push({ q, id, title, text, note: "" });
  },

  "notebook.note"(now, { q, id, note }) {
    insist(isTidy(note), "a note is a text");
    entryOf(now, { q, id }).note = note;
  },

  "notebook.remove"(now, { q, id }) {
    const entry = entryOf(now, { q, id });
    now.notebook = now.notebook.filter((one) => one !== entry);
  },

  "settings.save"(now, { units, digits }) {
    const isSystem = UNIT_SYSTEMS.some(({ value }) => value === units);
    insist(isSystem, "no such units");
    insist(DIGITS.includes(digits), "no such number of digits");
    now.settings = { units, digits };
  },

  /** `downloads` keep the page that a file came from, and what was chosen there: other files may have the same name. */
  download(now, { file, page, choice = {} }, world) {
    insist(Object.hasOwn(FILES, page), "no such page");
    const made = FILES[page](now, choice, world);
    insist(made.file === file, "this page has no such file");
    now.downloads.push({ file, page, choice: made.choice });
  },
};
