// What a reader can change, each a function of the state, plain arguments and the world. A transition throws where no page would do it.

import { email, filled, oneOf, refuse } from "/kit/rules.js";
import { SUBJECTS } from "/world.js";

export const OFTEN = ["Daily", "Weekly", "Monthly"];
/** Kinds of error that a reader can report. */
export const ERRORS = ["Author's name", "Wrong subject", "Broken file", "Duplicate paper"];

/** What the forms ask for: a field's problem, or "". The pages show it, the transitions refuse by it. */
export const entryRules = {
  folder: filled("a folder"),
  note: () => "",
};
export const alertRules = {
  email,
  word: () => "",
  often: oneOf(OFTEN, "Choose how often"),
};
export const subjectsProblem = (codes) => (codes.length ? "" : "Choose at least one subject");
export const reportRules = {
  kind: oneOf(ERRORS, "Choose a kind"),
  text: (value) => (value.length < 10 ? "Describe it in at least 10 letters" : ""),
  email,
};

/** Refuses values that are no texts, or that the form would not take. */
function check(values, rules) {
  for (const [name, rule] of Object.entries(rules)) {
    const value = values[name];
    refuse(typeof value === "string" ? rule(value) : `no ${name}`);
  }
}

const mustBePaper = (world, id) => {
  if (!world.byId.has(id)) throw new Error("no such paper");
};

/** The entry of a paper on the reading list. */
function entryOf(now, id) {
  const entry = now.list.find((one) => one.id === id);
  if (!entry) throw new Error("this paper is not on the reading list");
  return entry;
}

export const transitions = {
  "list.add"(now, { id }, world) {
    mustBePaper(world, id);
    if (now.list.some((one) => one.id === id)) throw new Error("this paper is on the reading list already");
    now.list.push({ id, folder: "Unsorted", note: "", read: false });
  },

  "list.remove"(now, { id }, world) {
    mustBePaper(world, id);
    now.list = now.list.filter((one) => one.id !== id);
  },

  "list.mark"(now, { id, read }) {
    if (typeof read !== "boolean") throw new Error("a paper is read or not");
    entryOf(now, id).read = read;
  },

  "list.edit"(now, { id, folder, note }) {
    check({ folder, note }, entryRules);
    Object.assign(entryOf(now, id), { folder, note });
  },

  "alert.create"(now, { email, word, often, subjects }) {
    check({ email, word, often }, alertRules);
    refuse(subjectsProblem(subjects));
    const known = SUBJECTS.map(({ code }) => code);
    if (new Set(subjects).size !== subjects.length || !subjects.every((code) => known.includes(code)))
      throw new Error("no such subject");
    now.alerts.push({ email, word, often, subjects });
  },

  /** `at` is the place of the alert among the reader's alerts, from 0. */
  "alert.delete"(now, { at }) {
    if (!Number.isInteger(at) || !now.alerts[at]) throw new Error("no such alert");
    now.alerts.splice(at, 1);
  },

  "report.send"(now, { id, kind, text, email }, world) {
    mustBePaper(world, id);
    check({ kind, text, email }, reportRules);
    now.reports.push({ id, kind, text, email });
  },
};
