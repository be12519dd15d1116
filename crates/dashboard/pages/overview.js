// Overview: how fast, how well, and where the time went.

import { ask, inTurn } from "./ask.js";
import { base } from "./base.js";
import { bars, waterfall } from "./charts.js";
import { card, el, redraw, table } from "./dom.js";
import {
  NONE,
  count,
  deviceHour,
  deviceName,
  dollars,
  duration,
  moment,
  number,
  percent,
  plural,
  spacedName,
} from "./format.js";
import { plot } from "./plot.js";
import { tile, tiles } from "./tiles.js";

export async function show(stage, { showNotices }) {
  const rivals = await otherRuns();
  const draw = inTurn(async () => {
    const answer = await ask("/api/overview");
    showNotices(answer.head);
    await redraw(stage, page(answer, rivals));
  });
  await draw();
  return { changed: () => draw().catch(() => {}) };
}

/** Runs beside this one that are named. */
const RIVALS_MAX = 4;

/** Over a folder, the other runs that this one can be compared with; once a page, since it looks through the folder. */
async function otherRuns() {
  if (base() === "") return [];
  const { runs } = await ask("/api/runs").catch(() => ({ runs: [] }));
  const others = runs.filter(({ key, trajectories }) => `/run/${key}` !== base() && trajectories > 0);
  return others.slice(0, RIVALS_MAX);
}

/** Each is one click away from how this run differs from it. */
function compareWith(rivals) {
  if (rivals.length === 0) return null;
  const [, , own] = base().split("/");
  return el(
    "p",
    { class: "note", id: "compare-with" },
    "Compare with ",
    rivals.map(({ key, name }, index) => [
      index > 0 ? ", " : "",
      el("a", { href: `/compare?run=${encodeURIComponent(key)}&run=${own}` }, name),
    ]),
  );
}

function page(answer, rivals) {
  const { throughput, tokens, head, live } = answer;
  if (head.trajectories === 0 && answer.device_parts === null) {
    return [
      el("h1", {}, "Overview"),
      live ? running(live) : null,
      el(
        "p",
        { class: "card" },
        "No trajectory is committed yet. The first shard closes after `records.max_delay_millis`, or when the job ends.",
      ),
    ];
  }
  const hour = deviceHour(answer.device);
  const isDevice = throughput.trajectories_per_device_hour !== null;
  return [
    el("div", { class: "between" }, el("h1", {}, "Overview"), compareWith(rivals)),
    live ? running(live) : null,
    figures(answer, hour, isDevice),
    isDevice || tokens.generated > 0
      ? el(
          "div",
          { class: "columns" },
          isDevice
            ? card("Measured against its ceilings", {}, ceilings(throughput, hour, answer.device))
            : null,
          card("Tokens", {}, tokenTable(tokens)),
        )
      : null,
    overTime(answer, isDevice),
    el(
      "div",
      { class: "columns" },
      card("Ends of scored trajectories", {}, ends(answer, "scored")),
      card("Failures by kind", {}, ends(answer, "failed")),
    ),
    answer.device === "none"
      ? null
      : card(
          `Where the ${deviceName(answer.device)}'s time went`,
          {},
          answer.device_parts ? waterfall(answer.device_parts, duration, "Device time") : noDevice(answer),
        ),
    card("Where the sessions' time went", {}, waterfall(answer.session_parts, duration, "Session time")),
    answer.slot_parts
      ? card(
          "How the environment workers' slots were used",
          {},
          waterfall(answer.slot_parts, duration, "Slot time"),
        )
      : null,
    el(
      "p",
      { class: "note" },
      `From ${moment(answer.started_at)} to ${moment(answer.ended_at)}, ${duration(seconds(answer.wall_seconds))} of wall clock.`,
    ),
  ];
}

function figures(answer, hour, isDevice) {
  const { throughput, counts, training, evaluated, versions, live } = answer;
  // While a job runs, its coordinator knows more than the data set: one source for one number.
  const now = live?.success_rate;
  return tiles(
    isDevice
      ? tile(
          `Trajectories per ${hour}`,
          number(throughput.trajectories_per_device_hour),
          live
            ? `over ${number(answer.device_hours)} ${hour}s`
            : `${count(throughput.scored)} scored in ${number(answer.device_hours)} ${hour}s`,
          { kind: "hero" },
        )
      : tile(
          "Trajectories per hour",
          number(throughput.trajectories_per_hour),
          live
            ? `over ${duration(seconds(answer.wall_seconds))}`
            : `${count(counts.scored)} scored in ${duration(seconds(answer.wall_seconds))}`,
          { kind: "hero" },
        ),
    isDevice || throughput.trajectories_per_slot_hour === null
      ? null
      : tile(
          "Trajectories per slot-hour",
          number(throughput.trajectories_per_slot_hour),
          "per slot and hour, busy or idle",
        ),
    now
      ? tile(
          "Success rate",
          percent(now.value),
          `[${percent(now.low)}, ${percent(now.high)}] of ${count(live.judged)} decided`,
        )
      : tile(
          "Success rate",
          percent(training.success_rate),
          `${count(training.successes)} of ${count(training.judged)} decided`,
        ),
    tile(
      "Mean reward",
      number(training.reward_mean),
      live ? "of the committed trajectories" : `of ${count(training.scored)} scored`,
    ),
    evaluated.trajectories === 0
      ? null
      : tile(
          "Success in evaluations",
          percent(evaluated.success_rate),
          `${count(evaluated.successes)} of ${count(evaluated.judged)} decided`,
        ),
    tile(
      "Steps per second",
      number(throughput.steps_per_second),
      `${number(counts.steps_mean)} steps a trajectory`,
    ),
    tile(
      "Failed by the farm",
      live ? count(live.failed) : percent(counts.failure_rate),
      live ? "attempts, in no rate" : `${count(counts.failed)} of ${count(counts.trajectories)} attempts`,
    ),
    versions.newest === null
      ? null
      : tile(
          "Policy version",
          versions.newest,
          versions.staleness_mean === null
            ? "no staleness is recorded"
            : `staleness ${number(versions.staleness_mean)} on average, at most ${versions.staleness_max}`,
          { title: "Staleness: policy versions between acting and the end of a trajectory" },
        ),
    answer.cost_usd === null
      ? null
      : tile(
          "Cost per trajectory",
          dollars(answer.cost_usd_per_trajectory),
          `${dollars(answer.cost_usd)} in all`,
        ),
  );
}

/** A job that runs: how far it is, and when it ends at this pace. */
export function running(live) {
  const share = live.groups_planned > 0 ? live.groups_closed / live.groups_planned : 0;
  const left = live.run_over
    ? "over"
    : live.eta_seconds === null
      ? "being measured"
      : duration(live.eta_seconds * 1e6);
  const admission = live.admission === "open" ? "" : ` Admission is paused: ${spacedName(live.admission)}.`;
  return el(
    "section",
    { class: "card running", "aria-label": "The running job" },
    el(
      "div",
      { class: "between" },
      el("h2", {}, live.run_over ? "The run is over" : "Running"),
      el(
        "p",
        { class: "note" },
        `${plural(live.env_workers, "environment worker")}, ${plural(live.policy_workers, "policy worker")}.${admission}`,
      ),
    ),
    el("progress", { value: share, max: 1, "aria-label": `${percent(share)} of the groups are closed` }),
    el(
      "dl",
      { class: "inline" },
      [
        ["groups", `${count(live.groups_closed)} of ${count(live.groups_planned)}`],
        ["running", count(live.running)],
        ["scored", scored(live)],
        ["failed", count(live.failed)],
        ["an hour since this start", number(live.trajectories_per_hour)],
        ["success rate", rate(live)],
        ["time left", left],
      ].map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
    ),
  );
}

/** Of what is scored or failed, what a shard does not have yet: the tables and plots are without it. */
function scored(live) {
  const left = live.scored + live.failed - live.published;
  return left > 0 ? `${count(live.scored)}, ${count(left)} not yet committed` : count(live.scored);
}

/** The success rate of attempts decided so far, with its interval; evaluations left out. */
function rate({ success_rate: rate, judged: decided }) {
  return rate === null
    ? NONE
    : `${percent(rate.value)} [${percent(rate.low)}, ${percent(rate.high)}] of ${count(decided)}`;
}

const seconds = (value) => (value === null ? null : value * 1e6);

/** The measured figure and the two that bound it, as bars of one scale. */
function ceilings(throughput, hour, device) {
  const lines = [
    ["measured", throughput.trajectories_per_device_hour, "as it is"],
    [
      `${deviceName(device)}-bound`,
      throughput.ceiling_device_bound,
      `had the ${deviceName(device)} never been idle`,
    ],
    ["session-bound", throughput.ceiling_session_bound, "had no slot ever been empty"],
  ];
  const most = Math.max(...lines.map(([, value]) => value ?? 0)) || 1;
  return [
    el(
      "ul",
      { class: "bars wide", "aria-label": `Trajectories per ${hour}` },
      lines.map(([name, value, why]) =>
        el(
          "li",
          {},
          el("span", { class: "name" }, name),
          el(
            "span",
            { class: "track", "aria-hidden": "true" },
            el("span", {
              class: `fill ${name === "measured" ? "" : "pale"}`,
              style: { width: `${(100 * (value ?? 0)) / most}%` },
            }),
          ),
          el("span", { class: "number strong" }, number(value)),
          el("span", { class: "note" }, why),
        ),
      ),
    ),
    el("p", { class: "note" }, verdict(throughput, device)),
  ];
}

function verdict(
  {
    trajectories_per_device_hour: measured,
    ceiling_device_bound: byDevice,
    ceiling_session_bound: bySession,
  },
  device,
) {
  if (!measured || !byDevice || !bySession) return "";
  const name = deviceName(device);
  if (measured > 0.85 * byDevice) return `The ${name} is nearly always busy: it is the bound.`;
  if (measured > 0.85 * bySession)
    return `The slots are nearly always full and the ${name} waits: more sessions, or quicker pages, would raise the figure.`;
  return `Both the ${name} and the slots stand idle at times: look at the causes below.`;
}

function tokenTable(tokens) {
  const rows = [
    ["generated", tokens.generated, tokens.generated_per_second],
    ["prefilled", tokens.prefilled, tokens.prefilled_per_second],
    ["reused", tokens.reused, tokens.reused_per_second],
  ];
  return [
    table(
      [
        { name: "", of: (row) => row[0] },
        { name: "tokens", of: (row) => count(row[1]), numeric: true },
        { name: "per second", of: (row) => number(row[2]), numeric: true },
      ],
      rows,
      "Tokens",
    ),
    el(
      "p",
      { class: "note" },
      tokens.reused_share === null
        ? tokens.generated > 0
          ? "How they were read is not known."
          : "This policy has no tokens."
        : `${percent(tokens.reused_share)} of what the model saw was still in its state and was not read again.`,
    ),
  ];
}

function noDevice(answer) {
  const took = duration(answer.device_micros_of_trajectories);
  return el(
    "p",
    { class: "note" },
    "The hours of the run are not known here (no metrics.jsonl beside the data). " +
      `Its trajectories themselves took ${took} of the device, idle time left out.`,
  );
}

/** Two plots beside one another, over the same time. */
function overTime(answer, isDevice) {
  const rates = isDevice
    ? answer.hours_over_time.map(({ at, trajectories_per_device_hour: value }) => ({ at, value }))
    : answer.over_time.points.map(({ at, trajectories_per_hour: value }) => ({ at, value }));
  const successes = answer.over_time.points.map(
    ({ at, success_rate: value, success_interval: interval }) => ({
      at,
      value,
      ...interval,
    }),
  );
  const shared = sharedRange(rates, successes);
  const name = isDevice ? `trajectories per ${deviceHour(answer.device)}` : "trajectories per hour";
  return el(
    "div",
    { class: "columns" },
    card(
      isDevice
        ? `Trajectories per ${deviceHour(answer.device)} over time`
        : "Trajectories per hour over time",
      {},
      plot([{ name, points: rates }], { label: name, ...shared }),
    ),
    card(
      "Success rate over time",
      { title: "With its 95 % interval, as if each attempt were at a different task" },
      plot([{ name: "success rate", points: successes }], {
        label: "success rate",
        write: percent,
        max: 1,
        ...shared,
      }),
    ),
  );
}

/** One range for both, unless their times have nothing to do with each other: a data set beside the hours of another. */
function sharedRange(...lists) {
  const extents = lists.map((points) => points.map(({ at }) => at)).filter((ats) => ats.length > 0);
  const [from, to] = [Math.min(...extents.flat()), Math.max(...extents.flat())];
  const longest = Math.max(...extents.map((ats) => ats[ats.length - 1] - ats[0]));
  return to - from > 4 * Math.max(longest, 60) ? {} : { range: [from, to], zoom: "overview" };
}

/** Each line leads to its trajectories. */
function ends(answer, status) {
  const pairs = answer.ends.filter((end) => end.status === status).map((end) => [end.end, end.trajectories]);
  if (pairs.length === 0)
    return el("p", { class: "note" }, status === "failed" ? "None failed." : "None yet.");
  const query = (end) => `/trajectories?${new URLSearchParams({ status, end })}`;
  const { training } = answer;
  const left = training.judged - training.successes;
  return [
    bars(pairs, spacedName(status), query, status === "failed" ? "bad" : ""),
    status === "scored" && left > 0
      ? el(
          "p",
          { class: "note" },
          el(
            "a",
            { class: "to-rows", href: "/trajectories?status=scored&success=no" },
            `${count(left)} not solved`,
          ),
          ", ",
          el(
            "a",
            { class: "to-rows", href: "/trajectories?success=yes" },
            `${count(training.successes)} solved`,
          ),
        )
      : null,
  ];
}
