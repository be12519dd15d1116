// Overview: how fast, how well, and where the time went.

import { ask, inTurn } from "./ask.js";
import { bars, line, waterfall } from "./charts.js";
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

export async function show(stage, { showNotices }) {
  const draw = inTurn(async () => {
    const answer = await ask("/api/overview");
    showNotices(answer.head);
    await redraw(stage, page(answer));
  });
  await draw();
  return { changed: () => draw().catch(() => {}) };
}

function page(answer) {
  const { throughput, counts, training, evaluated, tokens, versions, head, live } = answer;
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
  const rate = throughput.trajectories_per_device_hour;
  const isDevice = rate !== null;
  return [
    el("h1", {}, "Overview"),
    live ? running(live) : null,
    el(
      "div",
      { class: "tiles" },
      isDevice
        ? tile(
            `Trajectories per ${hour}`,
            number(rate),
            `${count(throughput.scored)} scored in ${number(answer.device_hours)} ${hour}s`,
            "hero",
          )
        : tile(
            "Trajectories per hour",
            number(throughput.trajectories_per_hour),
            `${count(counts.scored)} scored in ${duration(seconds(answer.wall_seconds))}`,
            "hero",
          ),
      isDevice
        ? null
        : tile(
            "Trajectories per slot-hour",
            number(throughput.trajectories_per_slot_hour),
            "per slot and hour, busy or idle",
          ),
      tile(
        "Success rate",
        percent(training.success_rate),
        `${count(training.successes)} of ${count(training.judged)} decided`,
      ),
      tile("Mean reward", number(training.reward_mean), `of ${count(training.scored)} scored`),
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
        percent(counts.failure_rate),
        `${count(counts.failed)} of ${count(counts.trajectories)} attempts`,
      ),
      tile(
        "Policy version",
        versions.newest ?? NONE,
        versions.staleness_mean === null
          ? "no staleness is recorded"
          : `${number(versions.staleness_mean)} behind on average, at most ${versions.staleness_max}`,
      ),
      answer.cost_usd === null
        ? null
        : tile(
            "Cost per trajectory",
            dollars(answer.cost_usd_per_trajectory),
            `${dollars(answer.cost_usd)} in all`,
          ),
    ),
    el(
      "div",
      { class: "columns" },
      isDevice ? card(`Measured against its ceilings`, {}, ceilings(throughput, hour, answer.device)) : null,
      card("Tokens", {}, tokenTable(tokens)),
    ),
    card(
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
      "div",
      { class: "columns" },
      card(
        isDevice ? `Trajectories per ${hour} over time` : "Trajectories per hour over time",
        {},
        rateOverTime(answer, isDevice),
      ),
      card(
        "Success rate over time",
        {},
        line(
          answer.over_time.points.map(({ at, success_rate }) => ({ at, value: success_rate })),
          { label: "success rate", write: percent, max: 1 },
        ),
      ),
    ),
    el(
      "div",
      { class: "columns" },
      card("Ends of scored trajectories", {}, ends(answer, "scored")),
      card("Failures by kind", {}, ends(answer, "failed")),
    ),
    el(
      "p",
      { class: "note" },
      `From ${moment(answer.started_at)} to ${moment(answer.ended_at)}, ${duration(seconds(answer.wall_seconds))} of wall clock.`,
    ),
  ];
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
        ["scored", count(live.scored)],
        ["failed", count(live.failed)],
        ["committed", count(live.published)],
        ["an hour since this start", number(live.trajectories_per_hour)],
        ["success rate", rate(live)],
        ["time left", left],
      ].map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
    ),
  );
}

/** The success rate of attempts decided so far, with its interval; evaluations left out. */
function rate({ success_rate: rate, judged: decided }) {
  return rate === null
    ? NONE
    : `${percent(rate.value)} [${percent(rate.low)}, ${percent(rate.high)}] of ${count(decided)}`;
}

const seconds = (value) => (value === null ? null : value * 1e6);

function tile(name, value, note, kind) {
  return el(
    "div",
    { class: `tile ${kind ?? ""}` },
    el("p", { class: "name" }, name),
    el("p", { class: "value" }, value),
    el("p", { class: "note" }, note),
  );
}

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
  if (answer.device === "none")
    return el(
      "p",
      { class: "note" },
      "This policy has no device: nothing is computed between an observation and its action.",
    );
  const took = duration(answer.device_micros_of_trajectories);
  return el(
    "p",
    { class: "note" },
    "The hours of the run are not known here (no metrics.jsonl beside the data). " +
      `Its trajectories themselves took ${took} of the device, idle time left out.`,
  );
}

function rateOverTime(answer, isDevice) {
  const points = isDevice
    ? answer.hours_over_time.map(({ at, trajectories_per_device_hour }) => ({
        at,
        value: trajectories_per_device_hour,
      }))
    : answer.over_time.points.map(({ at, trajectories_per_hour }) => ({ at, value: trajectories_per_hour }));
  return line(points, {
    label: isDevice ? `trajectories per ${deviceHour(answer.device)}` : "trajectories per hour",
  });
}

function ends(answer, status) {
  const pairs = answer.ends.filter((end) => end.status === status).map((end) => [end.end, end.trajectories]);
  return pairs.length === 0
    ? el("p", { class: "note" }, status === "failed" ? "None failed." : "None yet.")
    : bars(pairs, spacedName(status));
}
