// What stands below the steps of a trajectory: its siblings, its end, where its time went, and its facts, folded.

import { waterfall } from "./charts.js";
import { card, el } from "./dom.js";
import { NONE, count, dollars, duration, moment, number, plural, spacedName } from "./format.js";
import { outcomeOf, resultTag } from "./result.js";
import { facts, split } from "./step.js";
import { versions } from "./trajectories.js";

export function below(base, trajectory, siblings, id) {
  return [
    siblings.length > 1
      ? card(
          "Same task, same seed",
          { title: "The trajectories of this group: what an advantage is computed from." },
          group(siblings, id),
        )
      : null,
    el(
      "div",
      { class: "columns" },
      card("End", {}, end(trajectory)),
      card("Time", {}, waterfall(split(trajectory.timing), duration, "Time of the trajectory")),
    ),
    el(
      "section",
      { class: "card" },
      el(
        "details",
        { id: "facts" },
        el("summary", { id: "facts-fold" }, "Task, policy, worker and hashes"),
        facts(factsOf(trajectory)),
      ),
    ),
  ];
}

function factsOf(row) {
  const hashes = Object.entries(row.hashes ?? {}).filter(([, hash]) => hash);
  return [
    ["trajectory", el("code", {}, row.trajectory_id)],
    [
      "group",
      row.group_id
        ? el("a", { href: `/trajectories?group_id=${encodeURIComponent(row.group_id)}` }, row.group_id)
        : null,
    ],
    ["suite", row.suite],
    ["task", row.task_id],
    ["split", row.split],
    ["start page", row.task?.start_url],
    ["seed", String(row.task?.seed ?? NONE)],
    ["slot", `${row.sample_index + 1} of ${row.group_size}, attempt ${row.attempt + 1}`],
    ["policy", `${row.policy_kind}, version ${versions(row)}`],
    ["staleness", row.staleness === null ? NONE : plural(row.staleness, "version")],
    ["context", row.session?.context],
    ["grammar", row.session?.grammar],
    [
      "tokens",
      row.num_response_tokens > 0
        ? `${count(row.num_prompt_tokens)} prompt, ${count(row.num_response_tokens)} response`
        : "none",
    ],
    ["device time", row.gpu_micros > 0 ? duration(row.gpu_micros) : NONE],
    ["started", moment(row.started_at)],
    ["ended", moment(row.ended_at)],
    ["worker", row.environment?.worker],
    ["browser", row.environment?.browser],
    ["walls around it", row.environment?.walls],
    ...hashes.map(([name, hash]) => [
      `hash of ${spacedName(name)}`,
      el("code", { title: hash }, hash.slice(0, 16)),
    ]),
  ];
}

function end(row) {
  const score = row.score;
  return [
    el("p", {}, el("span", { class: "tag large" }, spacedName(row.end)), " ", row.failure_reason),
    row.status === "failed"
      ? el(
          "p",
          { class: "note" },
          "The farm failed this attempt: it has no reward and is excluded from all rates. Its slot is retried while attempts remain.",
        )
      : null,
    facts([
      ["reward", number(row.reward)],
      ["solved", solved(score)],
      [
        "parts of the reward",
        score?.components?.length
          ? score.components.map((part) => `${part.name} ${number(part.value)}`).join(", ")
          : null,
      ],
      ["scorer", score ? `${score.scorer}, version ${score.version}` : null],
      ["rationale", score?.rationale],
      ["answer", row.evidence?.answer],
      ["last address", row.evidence?.url],
      ["last title", row.evidence?.title],
      ["cost", row.cost_usd === null ? null : dollars(row.cost_usd)],
      [
        "last outcome",
        row.last_outcome ? `${spacedName(row.last_outcome.name)} ${row.last_outcome.detail}` : null,
      ],
    ]),
    row.evidence?.probe_json
      ? el(
          "details",
          {},
          el("summary", {}, "Probe data reported by the page"),
          el("pre", { tabindex: "0" }, row.evidence.probe_json),
        )
      : null,
  ];
}

function solved(score) {
  if (!score) return "not scored";
  return { true: "yes", false: "no" }[score.success] ?? "the scorer does not decide";
}

/**
 * Siblings side by side: a bar each, as long as its reward. All bars begin at the same 0, and one below it goes to the left
 * of it, hatched.
 */
function group(siblings, id) {
  const rewards = siblings.map((row) => row.reward ?? 0);
  const [least, most] = [Math.min(0, ...rewards), Math.max(0, ...rewards)];
  const span = most - least || 1;
  return el(
    "ul",
    { class: "bars siblings" },
    siblings.map((row) =>
      el(
        "li",
        { class: row.trajectory_id === id ? "at" : null },
        el(
          "a",
          {
            class: "name",
            href: `/trajectory/${encodeURIComponent(row.trajectory_id)}`,
            "aria-current": row.trajectory_id === id ? "true" : null,
          },
          `slot ${row.sample_index + 1}${row.attempt > 0 ? `, attempt ${row.attempt + 1}` : ""}`,
        ),
        el(
          "span",
          { class: "track", "aria-hidden": "true" },
          el("span", {
            class: (row.reward ?? 0) < 0 ? "fill below" : "fill",
            style: {
              "margin-left": `${(100 * (Math.min(0, row.reward ?? 0) - least)) / span}%`,
              width: `${(100 * Math.abs(row.reward ?? 0)) / span}%`,
            },
          }),
        ),
        el("span", { class: "number strong" }, number(row.reward)),
        el("span", {}, resultTag(outcomeOf(row))),
        el("span", { class: "note" }, `${spacedName(row.end)}, ${plural(row.num_steps, "step")}`),
      ),
    ),
  );
}
