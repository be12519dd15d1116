// How a trajectory came out, as one tag that reads without its colour: a sign, a word, a shade.

import { el } from "./dom.js";

/** A row of the table and a row of `trajectories` both have what this reads. */
export function outcomeOf(row) {
  if (row.status === "failed") return "failed";
  const success = row.score === undefined ? row.success : row.score?.success;
  return { true: "solved", false: "unsolved" }[success] ?? "undecided";
}

const TAGS = {
  solved: ["✓ solved", "good", "The scorer says that the task is solved."],
  unsolved: ["✗ not solved", "warn", "The scorer says that the task is not solved."],
  failed: ["! failed", "bad", "The farm failed this attempt: it has no reward and counts in no rate."],
  undecided: ["scored", "", "The scorer gives a reward and does not decide whether the task is solved."],
};

/** The tag of a result, as `outcomeOf` names it. */
export function resultTag(result, kind = "") {
  const [text, tone, title] = TAGS[result];
  return el("span", { class: `tag ${tone} ${kind}`, title }, text);
}

const GOOD_OUTCOMES = ["ok", "answered", "option_chosen"];

/** Whether the step's action was none, or did not do what it says. */
export function wentWrong(step) {
  return !step.action.valid || !GOOD_OUTCOMES.includes(step.outcome.name);
}

export function isGoodOutcome(name) {
  return GOOD_OUTCOMES.includes(name);
}
