// One step of a trajectory: its screenshot with the action marked, and beside it thought, action, outcome, tokens and time.

import { describe, mark, thought } from "./action.js";
import { waterfall } from "./charts.js";
import { el } from "./dom.js";
import { NONE, count, duration, number, percent, spacedName } from "./format.js";
import { recorded } from "./picture.js";
import { wentWrong } from "./result.js";

const CAUSES = ["queue", "boot", "observe", "policy", "act", "settle", "record", "finish", "score"];

/** The address of a step's screenshot. */
export function pictureOf(base, step) {
  return `${base}/screenshot/${step.step}`;
}

/** The large picture, with the mark over it. */
export function shot(base, step) {
  const { observation, action } = step;
  return frame(
    recorded({
      src: pictureOf(base, step),
      alt: `Screenshot before step ${step.step + 1}: ${observation.title}`,
      width: observation.width,
      height: observation.height,
    }),
    mark(observation, action),
  );
}

export function frame(picture, over) {
  return el("div", { class: "shot" }, picture, over);
}

/** Width over height: the picture takes its space before it is there. */
export function ratioOf({ width, height }) {
  return (width / height || 16 / 9).toFixed(4);
}

/** What was thought and done, and what came of it. `folds` holds what the reader unfolded, from step to step. */
export function account(step, folds, raw) {
  const { action, outcome } = step;
  const text = thought(action);
  return [
    text ? el("div", { class: "thought" }, el("h3", {}, "Thought"), el("p", {}, text)) : null,
    el("h3", {}, "Action"),
    el("p", { class: "action" }, describe(action)),
    action.error ? el("p", { class: "wrong" }, action.error) : null,
    el("h3", {}, "Outcome"),
    el(
      "p",
      {},
      el("span", { class: `tag ${wentWrong(step) ? "bad" : "good"}` }, spacedName(outcome.name)),
      step.reward ? ` reward ${number(step.reward)}` : null,
    ),
    outcome.detail ? el("p", { class: "detail" }, outcome.detail) : null,
    fold(
      folds,
      "reply",
      "Reply as written",
      el("pre", { class: "reply", tabindex: "0" }, action.raw_text || NONE),
    ),
    tokens(step, folds),
    fold(
      folds,
      "time",
      "Time of this step",
      waterfall(split(step.timing), duration, `Time of step ${step.step + 1}`),
    ),
    fold(folds, "step-facts", "Facts", [
      facts(factsOf(step)),
      el("button", { type: "button", class: "quiet", on: { click: () => raw(step.step) } }, "Raw row"),
    ]),
  ];
}

function factsOf(step) {
  const { action, engine, observation } = step;
  return [
    [
      "parts of the reward",
      step.reward_components?.length
        ? step.reward_components.map((part) => `${part.name} ${number(part.value)}`).join(", ")
        : null,
    ],
    ["name in the grammar", action.name],
    ["policy version", step.policy_version],
    [
      "tokens",
      engine.prefill_tokens + engine.decode_steps > 0
        ? `${count(engine.prefill_tokens)} prefilled, ${count(engine.reused_tokens)} reused, ${count(engine.decode_steps)} decoded`
        : null,
    ],
    ["state", engine.state_origin],
    ["device time", engine.gpu_micros > 0 ? duration(engine.gpu_micros) : null],
    ["finish reason", step.finish_reason ? spacedName(step.finish_reason) : null],
    ["screenshot", `${observation.width} × ${observation.height} ${observation.format}`],
  ];
}

/** A fold that stays open on the next step. */
function fold(folds, name, title, ...children) {
  // At the click, which comes before the fold opens or closes: a key may take the next step before the event `toggle`.
  const press = () => (node.open ? folds.delete(name) : folds.add(name));
  const node = el(
    "details",
    { open: folds.has(name), class: `fold ${name}` },
    el("summary", { on: { click: press } }, title),
    children,
  );
  return node;
}

/** Names and values; a value that is not there takes no line. */
export function facts(pairs) {
  const present = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el(
    "dl",
    { class: "facts" },
    present.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
  );
}

/** Parts of a whole from a `timing` cell. */
export function split(timing) {
  const parts = CAUSES.map((cause) => ({ cause, micros: timing?.[`${cause}_micros`] ?? 0 })).filter(
    ({ cause }) => timing && `${cause}_micros` in timing,
  );
  const whole = parts.reduce((sum, part) => sum + part.micros, 0);
  return parts.map((part) => ({ ...part, share: whole > 0 ? part.micros / whole : 0 }));
}

/** The whole of a `timing` cell; null where there is none. */
export function microsOf(timing) {
  return timing ? split(timing).reduce((sum, part) => sum + part.micros, 0) : null;
}

/** One box a token, the darker the less likely it was; its numbers under the pointer and in the table of the raw row. */
function tokens(step, folds) {
  const ids = step.response_token_ids;
  if (!ids?.length) return null;
  const boxes = ids.slice(0, 2000).map((id, at) => {
    const logprob = step.logprobs?.[at] ?? null;
    const [forced, sampled] = [step.forced?.[at], step.response_mask?.[at]];
    const chance = logprob === null ? null : Math.exp(logprob);
    const entropy = step.entropy?.[at] ?? null;
    const titleParts = [
      `token ${at}: id ${id}`,
      logprob === null ? "no log-prob" : `log-prob ${logprob.toFixed(3)} (${percent(chance)})`,
      entropy === null ? null : `entropy ${entropy.toFixed(3)}`,
      forced ? "forced by the grammar" : sampled ? null : "appended",
    ];
    return el("span", {
      class: `token ${chance === null ? "unknown" : ""}`,
      title: titleParts.filter(Boolean).join(", "),
      style: chance === null ? {} : { "--doubt": (1 - chance).toFixed(3) },
    });
  });
  const known = (step.logprobs ?? []).filter((value) => value !== null);
  const mean = known.length > 0 ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
  return fold(
    folds,
    "tokens",
    `${count(ids.length)} tokens, mean log-prob ${mean === null ? NONE : mean.toFixed(3)}`,
    el(
      "div",
      { class: "token-strip", role: "img", "aria-label": `${ids.length} tokens, darker where less likely` },
      boxes,
    ),
  );
}
