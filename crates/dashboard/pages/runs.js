// Runs: every run of a folder, with what became of it, and a way to lay two or more over one another.

import { ask, inTurn } from "./ask.js";
import { el, put, redraw, table } from "./dom.js";
import { NONE, bytes, count, moment, number, percent } from "./format.js";

/** Between two looks at the folder. */
const REST_MILLIS = 5000;
const COMPARE_MAX = 6;

export async function show(stage, { go, isHere }) {
  const chosen = new Set();
  const body = el("div");
  const button = el("button", { type: "button", id: "compare", disabled: true }, "Compare");
  const hint = el("p", { class: "note", role: "status" });
  button.addEventListener("click", () =>
    go(`/compare?${[...chosen].map((key) => `run=${encodeURIComponent(key)}`).join("&")}`),
  );
  const update = () => {
    button.disabled = chosen.size < 2 || chosen.size > COMPARE_MAX;
    hint.textContent =
      chosen.size < 2
        ? "Choose two runs or more to lay them over one another; the first one is what the others are compared with."
        : `${count(chosen.size)} chosen${chosen.size > COMPARE_MAX ? `; at most ${COMPARE_MAX} fit into a plot` : ""}`;
  };
  const draw = inTurn(async () => {
    const answer = await ask("/api/runs");
    document.getElementById("run-name").textContent = answer.folder;
    document.title = `Runs · ${answer.folder}`;
    const known = new Set(answer.runs.map((run) => run.key));
    for (const key of chosen) if (!known.has(key)) chosen.delete(key);
    await redraw(body, list(answer, chosen, update));
    update();
  });
  await draw();
  put(stage, el("div", { class: "between" }, el("h1", {}, "Runs"), button), hint, body);
  const timer = setInterval(() => isHere() && !document.hidden && draw().catch(() => {}), REST_MILLIS);
  return { close: () => clearInterval(timer) };
}

function list(answer, chosen, update) {
  if (answer.runs.length === 0)
    return el(
      "p",
      { class: "card" },
      `There is no run below ${answer.folder}. `,
      el("code", {}, "furrow run JOB"),
      " writes one, and it appears here by itself.",
    );
  const choose = (run) =>
    el("input", {
      type: "checkbox",
      id: `choose-${run.key}`,
      "aria-label": `Compare ${run.name}`,
      checked: chosen.has(run.key),
      on: {
        change: (event) => {
          if (event.target.checked) chosen.add(run.key);
          else chosen.delete(run.key);
          update();
        },
      },
    });
  const at = (run, path) => `/run/${encodeURIComponent(run.key)}${path}`;
  const columns = [
    { name: "", of: choose },
    { name: "run", of: (run) => el("a", { href: at(run, "/"), title: run.dir }, run.name) },
    { name: "state", of: (run) => state(run.state) },
    { name: "policy", of: (run) => run.policy },
    {
      name: "success",
      of: (run) =>
        run.success_rate === null ? NONE : `${percent(run.success_rate)} of ${count(run.judged)}`,
      numeric: true,
    },
    { name: "reward", of: (run) => number(run.reward_mean), numeric: true },
    {
      name: "trajectories",
      of: (run) => el("a", { href: at(run, "/trajectories") }, count(run.trajectories)),
      numeric: true,
    },
    { name: "size", of: (run) => bytes(run.bytes), numeric: true },
    { name: "started", of: (run) => startOf(run), numeric: true },
    {
      name: "",
      of: (run) => [
        el("a", { href: at(run, "/sessions") }, "sessions"),
        " ",
        el("a", { href: at(run, "/learning") }, "learning"),
        " ",
        el("a", { href: at(run, "/job") }, "job"),
      ],
    },
  ];
  return el(
    "section",
    { class: "card" },
    table(columns, answer.runs, "Runs"),
    answer.left_out > 0
      ? el("p", { class: "note" }, `${count(answer.left_out)} more runs are not listed.`)
      : null,
  );
}

/** The list says UTC; every page says the reader's own time. */
function startOf({ started }) {
  const millis = Date.parse(`${String(started).replace(" ", "T")}Z`);
  return Number.isNaN(millis) ? (started ?? NONE) : moment(millis * 1000);
}

function state(name) {
  const tone = { running: "good", complete: "", stopped: "warn", "cut off": "bad" }[name] ?? "";
  const sign = { running: "▶ ", complete: "✓ ", stopped: "‖ ", "cut off": "! " }[name] ?? "";
  return el("span", { class: `tag ${tone}` }, sign, name);
}
