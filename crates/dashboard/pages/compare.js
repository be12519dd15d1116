// Compare: runs over one another in the same plots, and how they differ task by task.

import { ask, inTurn } from "./ask.js";
import { card, el, put, redraw, table } from "./dom.js";
import { NONE, count, number, percent } from "./format.js";
import { plot } from "./plot.js";

const REST_MILLIS = 5000;
/** The same while a run is still being read. */
const PART_MILLIS = 1500;
/** Tasks of a table before the reader asks for all. */
const TASKS_FIRST = 10;
let isEveryTask = false;

export async function show(stage, { isHere }) {
  const keys = new URLSearchParams(location.search).getAll("run");
  const body = el("div");
  let soon = null;
  const redrawn = () => isHere() && draw().catch(() => {});
  const draw = inTurn(async () => {
    const of = (key, path) => ask(`/run/${encodeURIComponent(key)}/api/${path}`);
    const [compared, overviews, learnings] = await Promise.all([
      ask(`/api/compare${location.search}`),
      Promise.all(keys.map((key) => of(key, "overview"))),
      Promise.all(keys.map((key) => of(key, "learning"))),
    ]);
    if (!isHere()) return;
    const runs = keys.map((key, at) => ({ key, overview: overviews[at], learning: learnings[at] }));
    const names = distinctNames(overviews.map(({ head }) => head.name));
    document.title = `Compare · ${names.join(", ")}`;
    await redraw(body, page(runs, names, compared));
    // A large run that was opened for this is read from its start: its first answers are of a part.
    clearTimeout(soon);
    if (runs.some(isPart)) soon = setTimeout(redrawn, PART_MILLIS);
  });
  await draw();
  put(stage, el("h1", {}, "Compare"), body);
  const timer = setInterval(() => !document.hidden && redrawn(), REST_MILLIS);
  return {
    close: () => {
      clearInterval(timer);
      clearTimeout(soon);
    },
  };
}

function isPart({ overview: { head } }) {
  return head.step_files_left > 0;
}

/** Names without what they share at their beginning, as in reports. */
function distinctNames(names) {
  const unique = names.map((name, at) =>
    names.indexOf(name) === names.lastIndexOf(name) ? name : `${name} (${at + 1})`,
  );
  let common = 0;
  while (common < unique[0].length && unique.every((name) => name[common] === unique[0][common])) common += 1;
  const begin =
    Math.max(...["-", "_", ".", "/"].map((sign) => unique[0].slice(0, common).lastIndexOf(sign))) + 1;
  return begin > 3 && unique.every((name) => name.length > begin)
    ? unique.map((name) => `…${name.slice(begin)}`)
    : unique;
}

function page(runs, names, compared) {
  return [
    card(
      "Verdict",
      { id: "verdict" },
      compared.comparisons.map((found) => el("p", { class: "verdict" }, found.sentence)),
      el(
        "p",
        { class: "note" },
        "The mean of the differences at the tasks of both, in points of a percent of success, with its 95\u202f% interval: it resamples tasks (docs/EVALUATION.md).",
      ),
    ),
    card(
      "Figures",
      {},
      runs.some(isPart)
        ? el("p", { class: "note" }, "Figures over steps are of a part: files are still being read.")
        : null,
      figures(runs, names),
    ),
    plots(runs, names),
    compared.comparisons.map((found, at) =>
      card(
        `${names[at + 1]} against ${names[0]}, by task`,
        { id: `by-task-${at}` },
        byTask(found, names[0], names[at + 1]),
      ),
    ),
  ];
}

function figures(runs, names) {
  const rows = [
    ["trajectories", (run) => count(run.overview.counts.trajectories)],
    ["success rate", (run) => percent(run.overview.training.success_rate)],
    ["mean reward", (run) => number(run.overview.training.reward_mean)],
    ["trajectories per hour", (run) => number(run.overview.throughput.trajectories_per_hour)],
    ["trajectories per device-hour", (run) => number(run.overview.throughput.trajectories_per_device_hour)],
    ["steps a trajectory", (run) => number(run.overview.counts.steps_mean)],
    ["failed by the farm", (run) => percent(run.overview.counts.failure_rate)],
    ["invalid actions", (run) => percent(run.learning.invalid_action_rate)],
    ["zero-variance groups", (run) => percent(run.learning.zero_variance_share)],
    ["staleness", (run) => number(run.overview.versions.staleness_mean)],
  ].filter(([, of]) => runs.some((run) => of(run) !== NONE));
  const columns = [
    { name: "", of: ([name]) => name },
    ...runs.map((run, at) => ({
      name: el("a", { href: `/run/${encodeURIComponent(run.key)}/` }, names[at]),
      of: ([, of]) => of(run),
      numeric: true,
    })),
  ];
  return table(columns, rows, "Figures of the runs");
}

/** Over the time since each run's start, and over policy versions. */
function plots(runs, names) {
  const began = ({ overview }) => (overview.started_at ?? 0) / 1e6;
  const overTime = (of) =>
    runs.map((run, at) => ({
      name: names[at],
      points: run.overview.over_time.points.map((point) => ({
        ...of(point),
        at: Math.max(0, point.at - began(run)),
      })),
    }));
  const rates = overTime(({ trajectories_per_hour: value }) => ({ value }));
  const successes = overTime(({ success_rate: value, success_interval: interval }) => ({
    value,
    ...interval,
  }));
  const ats = rates.flatMap(({ points }) => points.map(({ at }) => at));
  const shared = { axis: "elapsed", range: [Math.min(...ats), Math.max(...ats)], zoom: "compare" };
  const byVersion = runs.map((run, at) => ({
    name: names[at],
    points: run.learning.by_version
      .filter((row) => row.version !== null)
      .map((row) => ({ at: row.version, value: row.success_rate, ...row.success_interval }))
      .reverse(),
  }));
  const hasVersions = byVersion.some(({ points }) => points.length > 1);
  const success = { write: percent, max: 1 };
  return el(
    "div",
    { class: "columns" },
    card(
      "Trajectories per hour since the start",
      {},
      plot(rates, { label: "trajectories per hour", ...shared }),
    ),
    card(
      "Success rate since the start",
      {},
      plot(successes, { label: "success rate", ...success, ...shared }),
    ),
    hasVersions
      ? card(
          "Success rate by policy version",
          {},
          plot(byVersion, {
            label: "success rate by version",
            axis: "version",
            zoom: "versions",
            ...success,
          }),
        )
      : null,
  );
}

function byTask(found, first, second) {
  const changed = found.tasks.filter(({ success, reward }) => (success?.value ?? reward) !== 0);
  const half = TASKS_FIRST / 2;
  const isCut = !isEveryTask && changed.length > TASKS_FIRST;
  const rows = isCut ? [...changed.slice(0, half), ...changed.slice(-half)] : changed;
  const points = (share) => `${share > 0 ? "+" : ""}${number(share * 100)}`;
  const rate = (share, tries) => `${percent(share)} of ${count(tries)}`;
  const columns = [
    { name: "task", of: (task) => el("span", { title: task.suite }, task.task_id) },
    { name: first, of: (task) => rate(task.success_first, task.judged_first), numeric: true },
    { name: second, of: (task) => rate(task.success_second, task.judged_second), numeric: true },
    { name: "", of: (task) => differenceBar(task.success?.value ?? task.reward ?? 0) },
    {
      name: "points of success",
      of: ({ success }) =>
        success === null
          ? NONE
          : `${points(success.value)}${success.low === null ? "" : ` [${points(success.low)}, ${points(success.high)}]`}`,
      numeric: true,
    },
    { name: "reward", of: (task) => number(task.reward), numeric: true },
  ];
  const every = (event) => {
    isEveryTask = !isEveryTask;
    const node = event.target.closest("section");
    redraw(node, el("h2", {}, node.querySelector("h2").textContent), byTask(found, first, second));
  };
  return [
    changed.length === 0 ? null : table(columns, rows, `${second} against ${first}, by task`),
    changed.length > TASKS_FIRST
      ? el(
          "p",
          { class: "note" },
          isCut ? `The ${half} largest losses and gains of ${count(changed.length)} tasks that differ. ` : "",
          el(
            "button",
            { type: "button", class: "every", on: { click: every } },
            isCut ? "Show all" : "Show fewer",
          ),
        )
      : null,
    el("p", { class: "note" }, notes(found, changed)),
  ];
}

function notes(found, changed) {
  const same = found.shared_tasks - found.tasks_left_out - changed.length;
  return [
    `${count(same)} of ${count(found.shared_tasks)} shared tasks have the same result.`,
    found.tasks_left_out > 0 ? ` ${count(found.tasks_left_out)} between the ends are not listed.` : "",
    found.only_first > 0 ? ` ${count(found.only_first)} were tried by the first run alone.` : "",
    found.only_second > 0 ? ` ${count(found.only_second)} were tried by the second run alone.` : "",
    found.redefined > 0 ? ` ${count(found.redefined)} have another definition in the second run.` : "",
  ];
}

/** Loss to the left, gain to the right of the middle. */
function differenceBar(value) {
  const share = Math.min(1, Math.abs(value)) * 50;
  return el(
    "span",
    { class: "difference", "aria-hidden": "true" },
    el("span", {
      class: value < 0 ? "fill below" : "fill",
      style: { "margin-left": `${value < 0 ? 50 - share : 50}%`, width: `${share}%` },
    }),
  );
}
