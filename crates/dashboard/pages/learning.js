// Learning: whether the policy gets better, and what a trainer gets to see of it.

import { ask, inTurn } from "./ask.js";
import { bars, histogram } from "./charts.js";
import { card, el, redraw, table } from "./dom.js";
import { NONE, count, number, percent } from "./format.js";
import { plot } from "./plot.js";
import { tile, tiles } from "./tiles.js";

// Reading what is kept goes through the whole table: once in a while is enough. What is of a part only comes sooner.
const REST = 15000;
const REST_PARTLY = 2000;

export async function show(stage, { showNotices, isHere }) {
  let last = 0;
  let rest = REST;
  let waiting = null;
  const draw = inTurn(async () => {
    const answer = await ask("/api/learning");
    last = Date.now();
    const isPart = answer.head.step_files_left > 0 || answer.head.trajectories === 0 || answer.kept === null;
    rest = isPart ? REST_PARTLY : REST;
    showNotices(answer.head);
    await redraw(stage, page(answer));
    // The answer is being computed for another request: no change announces its end.
    if (answer.kept === null && answer.head.trajectories > 0) later();
  });
  /** Put off, not left out: the last change may have no other after it. */
  function later() {
    if (!isHere()) return;
    waiting ??= setTimeout(
      () => {
        waiting = null;
        draw().catch(() => {});
      },
      Math.max(0, last + rest - Date.now()),
    );
  }
  await draw();
  return { changed: later, close: () => clearTimeout(waiting) };
}

function page(answer) {
  const { all, evaluated } = answer;
  if (all.trajectories + evaluated.trajectories === 0)
    return [
      el("h1", {}, "Learning"),
      el(
        "p",
        { class: "card" },
        "No trajectory is committed yet. The first shard closes after `records.max_delay_millis`, or when the job ends; ",
        "until then, Sessions shows what runs.",
      ),
    ];
  return [
    el("h1", {}, "Learning"),
    figures(answer),
    drift(answer),
    card("By policy version", {}, byVersion(answer)),
    card("Recorded log-probs compared with the prefill path", {}, gap(answer.prefill_gap)),
    card(
      "By suite",
      {},
      table([{ name: "suite", of: (row) => row.suite }, ...COUNTS], answer.by_suite, "By suite"),
    ),
    card("By task", { id: "by-task" }, byTask(answer)),
    el(
      "div",
      { class: "columns" },
      card(
        "Staleness",
        { title: "Policy versions between acting and the end of a trajectory" },
        answer.staleness.length === 0
          ? el("p", { class: "note" }, "No trajectory has a version: this policy has no weights.")
          : histogram(answer.staleness, { label: "staleness" }),
      ),
      card("Steps of scored trajectories", {}, histogram(answer.lengths, { label: "steps" })),
    ),
    el(
      "div",
      { class: "columns" },
      card("Finish reasons", { title: "Why responses ended" }, bars(answer.finish_reasons, "finish reasons")),
      card("Outcomes of actions", {}, bars(answer.outcomes, "outcomes")),
    ),
    el(
      "div",
      { class: "columns" },
      card(
        "State origins",
        { title: "Where the state of a step came from: prefilled, kept, forked, restored" },
        bars(answer.state_origins, "state origins"),
      ),
      card("Kept and left out by a trainer", {}, kept(answer.kept)),
    ),
  ];
}

const COUNTS = [
  { name: "scored", of: (row) => count(row.scored), numeric: true },
  { name: "failed", of: (row) => count(row.failed), numeric: true },
  { name: "success", of: (row) => percent(row.success_rate), numeric: true },
  { name: "reward", of: (row) => number(row.reward_mean), numeric: true },
  { name: "steps", of: (row) => number(row.steps_mean), numeric: true },
  { name: "invalid", of: (row) => percent(row.invalid_action_rate), numeric: true },
];

function figures(answer) {
  const { all, evaluated, staleness } = answer;
  const lag = meanOf(staleness);
  const whole = answer.kept?.lines.find((line) => line.by === "all");
  return tiles(
    tile(
      "Success rate",
      percent(all.success_rate),
      `${count(all.successes)} of ${count(all.judged)} decided`,
    ),
    tile("Mean reward", number(all.reward_mean), `of ${count(all.scored)} scored`),
    evaluated.trajectories === 0
      ? null
      : tile(
          "Success in evaluations",
          percent(evaluated.success_rate),
          `${count(evaluated.successes)} of ${count(evaluated.judged)} decided`,
        ),
    lag === null
      ? null
      : tile("Staleness", number(lag), `versions on average, at most ${staleness[staleness.length - 1][0]}`, {
          title: "Policy versions between acting and the end of a trajectory",
        }),
    whole
      ? tile(
          "Kept by a trainer",
          percent(whole.kept / whole.trajectories),
          `${count(whole.kept)} of ${count(whole.trajectories)} attempts`,
          {
            title: "A trainer filters out failed attempts, stale ones and zero-variance groups",
          },
        )
      : null,
    tile("Zero-variance groups", percent(answer.zero_variance_share), `of ${count(answer.groups)} closed`, {
      title: "All rewards of the group are equal: its advantages are 0, and a trainer learns nothing from it",
    }),
    tile("Invalid actions", percent(answer.invalid_action_rate), "of all replies"),
    answer.response_tokens_per_step === null || all.scored + evaluated.scored === 0
      ? null
      : tile("Response length", number(answer.response_tokens_per_step), "tokens a step"),
    answer.entropy_mean === null
      ? null
      : tile("Entropy", number(answer.entropy_mean), "nats a sampled token"),
  );
}

function meanOf(pairs) {
  const times = pairs.reduce((sum, [, count]) => sum + count, 0);
  return times > 0 ? pairs.reduce((sum, [value, count]) => sum + value * count, 0) / times : null;
}

/** What changes from one version to the next is drift. The same plots, in the same words, are in a report. */
const DRIFT = [
  [
    "Success rate by policy version",
    { of: (row) => ({ value: row.success_rate, ...row.success_interval }), write: percent, max: 1 },
  ],
  ["Tokens a response by policy version", { of: (row) => ({ value: row.response_tokens_per_step }) }],
  ["Entropy by policy version, nats a sampled token", { of: (row) => ({ value: row.entropy_mean }) }],
  ["Log-prob of a sampled token by policy version", { of: (row) => ({ value: row.logprob_mean }), max: 0 }],
].map(([title, options]) => [title, { label: title, ...options }]);

/** The plots that have two versions to compare; where none has, one card says why and what would change that. */
function drift(answer) {
  const rows = answer.by_version.filter((row) => row.version !== null).reverse();
  const known = DRIFT.map(([title, { of, ...options }]) => ({
    title,
    options,
    points: rows.map((row) => ({ at: row.version, ...of(row) })),
  })).filter(({ points }) => points.filter(({ value }) => Number.isFinite(value)).length > 1);
  if (known.length === 0) return card("Drift over policy versions", {}, noDrift(answer, rows));
  const range = [rows[0].version, rows[rows.length - 1].version];
  return el(
    "div",
    { class: "columns" },
    known.map(({ title, options, points }) =>
      card(title, {}, plot([{ name: title, points }], { ...options, axis: "version", range, zoom: "drift" })),
    ),
  );
}

function noDrift({ head }, rows) {
  const why =
    rows.length === 0
      ? "This policy has no weights, so nothing drifts."
      : `All trajectories are of policy version ${rows[0].version}: a plot over versions needs two.`;
  return el(
    "p",
    { class: "note" },
    why,
    rows.length === 0
      ? null
      : head.device === "none"
        ? null
        : [
            " Publish new weights into the running job: ",
            el("code", {}, "furrow publish"),
            " (docs/WEIGHTS.md).",
          ],
  );
}

/** The gap between recorded and recomputed log-probs, which is the error of every importance ratio. */
function gap(found) {
  if (!found)
    return el(
      "p",
      { class: "note" },
      "No tokens were audited: the policy records no tokens, or `policy.audit.share` is 0.",
    );
  const nats = (value) => `${number(value)} nats`;
  const facts = [
    ["tokens scored again", count(found.tokens)],
    ["mean gap", nats(found.mean_abs)],
    ["half are within", nats(found.p50)],
    ["99 in 100 within", nats(found.p99)],
    ["largest", nats(found.max)],
  ];
  return el(
    "dl",
    { class: "inline" },
    facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
}

/** The same as numbers, newest first. */
function byVersion(answer) {
  const columns = [
    { name: "version", of: (row) => row.version ?? NONE },
    ...COUNTS,
    { name: "tokens a step", of: (row) => number(row.response_tokens_per_step), numeric: true },
    { name: "entropy", of: (row) => number(row.entropy_mean), numeric: true },
    { name: "log-prob", of: (row) => number(row.logprob_mean), numeric: true },
    { name: "zero variance", of: (row) => percent(row.zero_variance_share), numeric: true },
  ];
  return [
    table(columns, answer.by_version, "By policy version"),
    more(answer.versions_left_out, "older versions are not shown"),
  ];
}

/** Lines of the table by task before the reader asks for all. */
const TASKS_FIRST = 12;
let isEveryTask = false;

function byTask(answer) {
  const showEvery = () => {
    isEveryTask = !isEveryTask;
    const node = document.getElementById("by-task");
    redraw(node, el("h2", {}, "By task"), byTask(answer));
  };
  const name = (row) =>
    el("a", { href: `/trajectories?task_id=${encodeURIComponent(row.task_id)}` }, row.task_id);
  return [
    el(
      "div",
      { id: "tasks" },
      table(
        [{ name: "task", of: name }, { name: "suite", of: (row) => row.suite }, ...COUNTS],
        isEveryTask ? answer.by_task : answer.by_task.slice(0, TASKS_FIRST),
        "By task",
      ),
    ),
    answer.by_task.length > TASKS_FIRST
      ? el(
          "p",
          { class: "note" },
          isEveryTask
            ? `${count(answer.by_task.length)} tasks. `
            : `${TASKS_FIRST} of ${count(answer.by_task.length)} tasks. `,
          el(
            "button",
            { type: "button", id: "every-task", on: { click: showEvery } },
            isEveryTask ? `Show ${TASKS_FIRST}` : "Show all",
          ),
        )
      : null,
    more(answer.tasks_left_out, "tasks with fewer attempts are not shown"),
  ];
}

function more(left, what) {
  return left > 0 ? el("p", { class: "note" }, `${count(left)} ${what}.`) : null;
}

function kept(report) {
  if (!report) return el("p", { class: "note" }, NONE);
  const columns = [
    { name: "", of: (line) => (line.by === "all" ? "all" : `${line.by} ${line.value}`) },
    { name: "attempts", of: (line) => count(line.trajectories), numeric: true },
    { name: "kept", of: (line) => count(line.kept), numeric: true },
    { name: "zero variance", of: (line) => count(line.zero_variance), numeric: true },
    { name: "stale", of: (line) => count(line.stale), numeric: true },
    {
      name: "failed",
      of: (line) => count(Object.values(line.failed).reduce((sum, times) => sum + times, 0)),
      numeric: true,
    },
    { name: "reward, kept", of: (line) => number(line.reward_mean_kept), numeric: true },
  ];
  return el("div", { class: "tall", id: "kept" }, table(columns, report.lines, "Kept and left out"));
}
