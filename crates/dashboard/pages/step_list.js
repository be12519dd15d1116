// All steps of a trajectory as lines, to read through without opening one after another.

import { describe } from "./action.js";
import { el, table } from "./dom.js";
import { NONE, duration, spacedName } from "./format.js";
import { wentWrong } from "./result.js";
import { microsOf } from "./step.js";

export function stepList(steps) {
  const fold = el(
    "details",
    { id: "all-steps" },
    el("summary", { id: "all-steps-fold" }, `All ${steps.length} steps as a list`),
  );
  // Made when asked for: a trajectory may have hundreds.
  fold.addEventListener("toggle", () => {
    if (fold.open && fold.children.length === 1) fold.append(lines(steps));
  });
  return el("section", { class: "card" }, fold);
}

function lines(steps) {
  const columns = [
    { name: "step", of: (step) => el("a", { href: `#step=${step.step + 1}` }, `${step.step + 1}`) },
    { name: "action", of: (step) => describe(step.action) },
    {
      name: "outcome",
      of: (step) =>
        el("span", { class: `tag ${wentWrong(step) ? "bad" : "good"}` }, spacedName(step.outcome.name)),
    },
    { name: "page", of: (step) => step.observation.title || step.observation.url || NONE },
    { name: "policy", of: (step) => duration(step.timing?.policy_micros), numeric: true },
    { name: "whole step", of: (step) => duration(microsOf(step.timing)), numeric: true },
  ];
  return table(columns, steps, "All steps");
}
