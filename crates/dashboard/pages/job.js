// Job: how far it is, what was asked for, and the hours it took, each attributed to one cause.

import { ask, inTurn, tellServer } from "./ask.js";
import { card, el, put, redraw, table } from "./dom.js";
import { NONE, bytes, count, deviceHour, duration, percent, words } from "./format.js";
import { running } from "./overview.js";

export async function show(stage, { tell }) {
  let job = null;
  const dialog = el("dialog", { class: "ask", "aria-labelledby": "ask-title" });
  // Outside of what is drawn each second: it stays under the pointer.
  const drain = el("button", { type: "button", id: "drain", hidden: true, on: { click: () => confirm(dialog, job) } }, "Drain…");
  const body = el("div");
  const draw = inTurn(async () => {
    job = await ask("/api/job");
    tell(job.head);
    drain.hidden = !job.live || job.live.run_over;
    await redraw(body, page(job));
  });
  await draw();
  put(stage, el("div", { class: "between" }, el("h1", {}, "Job"), drain), body, dialog);
  return { changed: () => draw().catch(() => {}) };
}

/** Draining cannot be taken back, so it is asked for twice. */
function confirm(dialog, job) {
  const said = el("p", { role: "status" });
  const close = el("button", { type: "button", on: { click: () => dialog.close() } }, "Go on running");
  const yes = el("button", { type: "button", class: "danger", id: "drain-yes" }, "Drain");
  yes.addEventListener("click", async () => {
    yes.disabled = true;
    try {
      await tellServer("/api/drain");
      said.textContent = "Told. Nothing new begins; what runs is finished and published, then the run ends.";
      close.textContent = "Close";
    } catch (error) {
      said.textContent = error.message;
      yes.disabled = false;
    }
  });
  put(dialog, el("h2", { id: "ask-title" }, `Drain ${job.head.name}?`), el("p", {}, `Nothing new begins, ${count(job.live?.running ?? 0)} running trajectories are finished or handed back, and the run ends. It goes on later with --resume.`), said, el("div", { class: "between" }, close, yes));
  dialog.showModal();
  close.focus();
}

function page(job) {
  const hour = deviceHour(job.head.device);
  const { live } = job;
  return [
    live ? running(live) : null,
    live?.weights.length ? card("Policy workers", {}, weights(live)) : null,
    card("Where it is", {}, el("dl", { class: "facts" }, el("dt", {}, "run"), el("dd", {}, job.head.name), el("dt", {}, "directory"), el("dd", {}, el("code", {}, job.dir ?? NONE)), el("dt", {}, "newest commit"), el("dd", {}, count(job.head.version)))),
    card(`The ledger of ${hour}s`, {}, el("p", { class: "note" }, "Every microsecond is in exactly one line; the lines of a part add up to its whole."), ledger("Devices", job.ledger.device), ledger("Slots of environment workers", job.ledger.slots), ledger("Sessions", job.ledger.sessions), job.metrics_lines_unread > 0 ? el("p", { class: "wrong" }, `${count(job.metrics_lines_unread)} lines of metrics.jsonl could not be read.`) : null),
    job.tables ? card("Tables", {}, tables(job.tables)) : null,
    card("The job, every key with its value", {}, job.job ? el("details", { id: "resolved" }, el("summary", { id: "resolved-fold" }, "job.toml, resolved"), el("pre", { id: "resolved-text", tabindex: "0" }, job.job)) : el("p", { class: "note" }, "There is no job.toml beside this data set.")),
  ];
}

function weights(live) {
  const columns = [
    { name: "worker", of: (row) => row.worker },
    { name: "version", of: (row) => row.version, numeric: true },
    { name: "why it lags", of: (row) => row.lags || NONE },
  ];
  return [el("p", { class: "note" }, `Version ${live.version} is current, ${live.version_newest} is the newest published.`), table(columns, live.weights, "Policy workers")];
}

function ledger(name, { micros, parts }) {
  if (parts.length === 0 || micros === 0) return [el("h3", {}, name), el("p", { class: "note" }, "Nothing is accounted for.")];
  const rows = [...parts, { cause: "all", group: "", micros, share: 1 }];
  const columns = [
    { name: "cause", of: (part) => words(part.cause) },
    { name: "belongs to", of: (part) => words(part.group) },
    { name: "microseconds", of: (part) => count(part.micros), numeric: true },
    { name: "time", of: (part) => duration(part.micros), numeric: true },
    { name: "share", of: (part) => percent(part.share), numeric: true },
  ];
  return [el("h3", {}, name), table(columns, rows, name)];
}

function tables(list) {
  const columns = [
    { name: "table", of: (row) => words(row.table) },
    { name: "files", of: (row) => count(row.files), numeric: true },
    { name: "rows", of: (row) => count(row.rows), numeric: true },
    { name: "bytes", of: (row) => bytes(row.bytes), numeric: true },
  ];
  return table(columns, list, "Tables of the data set");
}
