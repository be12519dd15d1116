// Job: how far it is, what was asked for, and the hours it took, each attributed to one cause.

import { ask, inTurn, postCommand } from "./ask.js";
import { card, el, put, redraw, table } from "./dom.js";
import { NONE, bytes, count, deviceHour, duration, number, percent, spacedName } from "./format.js";
import { running } from "./overview.js";

export async function show(stage, { showNotices }) {
  let job = null;
  const dialog = el("dialog", { class: "ask", "aria-labelledby": "ask-title" });
  // Outside of what is drawn each second: it stays under the pointer.
  const button = (ending) =>
    el(
      "button",
      { type: "button", id: ending.id, hidden: true, on: { click: () => confirm(dialog, job, ending) } },
      `${ending.name}…`,
    );
  const buttons = ENDINGS.map(button);
  const body = el("div");
  const draw = inTurn(async () => {
    job = await ask("/api/job");
    showNotices(job.head);
    for (const button of buttons) button.hidden = !job.live || job.live.run_over;
    await redraw(body, page(job));
  });
  await draw();
  put(
    stage,
    el("div", { class: "between" }, el("h1", {}, "Job"), el("div", { class: "buttons" }, buttons)),
    body,
    dialog,
  );
  return { changed: () => draw().catch(() => {}) };
}

const ENDINGS = [
  {
    id: "drain",
    name: "Drain",
    confirmation:
      "Accepted. No new trajectory starts; running ones are finished and committed, then the run ends.",
    asks: (running) =>
      `No new trajectory starts, ${running} running trajectories are finished or handed back, and the run ends. It continues later with `,
  },
  {
    id: "stop",
    name: "Stop",
    confirmation: "Accepted. What ran is taken back; what was scored is committed, then the run ends.",
    asks: (running) =>
      `No new trajectory starts, ${running} running trajectories are cancelled now and their work is lost, and the run ends. They are retried later with `,
  },
];

/** Neither can be taken back, so it is asked for twice. */
function confirm(dialog, job, ending) {
  const statusLine = el("p", { role: "status" });
  const close = el("button", { type: "button", on: { click: () => dialog.close() } }, "Go on running");
  const yes = el("button", { type: "button", class: "danger", id: `${ending.id}-yes` }, ending.name);
  yes.addEventListener("click", async () => {
    yes.disabled = true;
    try {
      await postCommand(`/api/${ending.id}`);
      statusLine.textContent = ending.confirmation;
      close.textContent = "Close";
    } catch (error) {
      statusLine.textContent = error.message;
      yes.disabled = false;
    }
  });
  put(
    dialog,
    el("h2", { id: "ask-title" }, `${ending.name} ${job.head.name}?`),
    el("p", {}, ending.asks(count(job.live?.running ?? 0)), el("code", {}, "--resume"), "."),
    statusLine,
    el("div", { class: "between" }, close, yes),
  );
  dialog.showModal();
  close.focus();
}

function page(job) {
  const hour = deviceHour(job.head.device);
  const { live } = job;
  return [
    live ? running(live) : null,
    job.plan ? card("Plan against measurement", {}, plan(job.plan, job.head.device)) : null,
    job.workers ? card("Workers", {}, workers(job.workers)) : null,
    live?.weights.length ? card("Versions of the policy workers", {}, weights(live)) : null,
    card(
      "Where it is",
      {},
      el(
        "dl",
        { class: "facts" },
        el("dt", {}, "run"),
        el("dd", {}, job.head.name),
        el("dt", {}, "directory"),
        el("dd", {}, el("code", {}, job.dir ?? NONE)),
        el("dt", {}, "newest commit"),
        el("dd", {}, count(job.head.version)),
      ),
    ),
    card(
      `The ledger of ${hour}s`,
      {},
      el(
        "p",
        { class: "note" },
        "Every microsecond is in exactly one line; the lines of a part add up to its whole.",
      ),
      ledger("Devices", job.ledger.device),
      ledger("Slots of environment workers", job.ledger.slots),
      ledger("Sessions", job.ledger.sessions),
      job.metrics_lines_unread > 0
        ? el(
            "p",
            { class: "wrong" },
            `${count(job.metrics_lines_unread)} lines of metrics.jsonl could not be read.`,
          )
        : null,
    ),
    job.tables ? card("Tables", {}, tables(job.tables)) : null,
    card(
      "The job, every key with its value",
      {},
      job.job
        ? el(
            "details",
            { id: "resolved" },
            el("summary", { id: "resolved-fold" }, "job.toml, resolved"),
            el("pre", { id: "resolved-text", tabindex: "0" }, job.job),
          )
        : el("p", { class: "note" }, "There is no job.toml beside this data set."),
    ),
  ];
}

/** What was planned, or bounds it, beside the result. */
function plan(lines, device) {
  const hour = deviceHour(device);
  const descriptions = {
    trajectories: ["trajectories scored", "groups and their attempts, evaluations left out", count],
    slots_filled: ["slots with a trajectory in them", "all of them, all the time", percent],
    tokens_a_step: ["tokens a step", "at most", number],
    per_slot_hour: ["trajectories per slot-hour", "had the policy answered at once", number],
    per_device_hour: [`trajectories per ${hour}`, "floor of the device with this run's own work", number],
  };
  const columns = [
    { name: "", of: ({ figure, device }) => descriptions[figure][0] + (device ? `, ${device}` : "") },
    { name: "plan or bound", of: ({ figure, planned }) => descriptions[figure][2](planned), numeric: true },
    { name: "measured", of: ({ figure, measured }) => descriptions[figure][2](measured), numeric: true },
    { name: "reached", of: (row) => percent(row.share), numeric: true },
    { name: "the plan is", of: ({ figure }) => descriptions[figure][1] },
  ];
  // A policy without tokens plans none and has none.
  const known = lines.filter(({ planned, measured }) => planned !== null || measured > 0);
  return table(columns, known, "Plan against measurement");
}

function workers(list) {
  if (list.length === 0) return el("p", { class: "wrong" }, "No worker is there.");
  const columns = [
    { name: "worker", of: (row) => row.worker },
    { name: "role", of: (row) => ({ env: "environment", policy: "policy" })[row.role] ?? row.role },
    { name: "sessions", of: (row) => `${count(row.sessions)} of ${count(row.sessions_max)}`, numeric: true },
    { name: "last heartbeat", of: ({ heard_seconds: ago }) => `${duration(ago * 1e6)} ago`, numeric: true },
    { name: "memory", of: (row) => bytes(row.memory_bytes), numeric: true },
    { name: "memory left there", of: (row) => bytes(row.memory_left_bytes), numeric: true },
    { name: "version", of: (row) => row.version ?? NONE, numeric: true },
    { name: "given no sessions", of: (row) => row.waits ?? NONE },
  ];
  return table(columns, list, "Workers");
}

function weights(live) {
  const columns = [
    { name: "worker", of: (row) => row.worker },
    { name: "version", of: (row) => row.version, numeric: true },
    { name: "why it lags", of: (row) => row.lags || NONE },
  ];
  return [
    el(
      "p",
      { class: "note" },
      `Version ${live.version} is current, ${live.version_newest} is the newest published.`,
    ),
    table(columns, live.weights, "Versions of the policy workers"),
  ];
}

function ledger(name, { micros, parts }) {
  if (parts.length === 0 || micros === 0)
    return [el("h3", {}, name), el("p", { class: "note" }, "Nothing is accounted for.")];
  const rows = [...parts, { cause: "all", group: "", micros, share: 1 }];
  const columns = [
    { name: "cause", of: (part) => spacedName(part.cause) },
    { name: "belongs to", of: (part) => spacedName(part.group) },
    { name: "microseconds", of: (part) => count(part.micros), numeric: true },
    { name: "time", of: (part) => duration(part.micros), numeric: true },
    { name: "share", of: (part) => percent(part.share), numeric: true },
  ];
  return [el("h3", {}, name), table(columns, rows, name)];
}

function tables(list) {
  const columns = [
    { name: "table", of: (row) => spacedName(row.table) },
    { name: "files", of: (row) => count(row.files), numeric: true },
    { name: "rows", of: (row) => count(row.rows), numeric: true },
    { name: "bytes", of: (row) => bytes(row.bytes), numeric: true },
  ];
  return table(columns, list, "Tables of the data set");
}
