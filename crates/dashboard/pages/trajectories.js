// Trajectories: all of them, filtered and sorted by the server, in the words of the table's columns. The address holds the question.

import { ask, inTurn } from "./ask.js";
import { within } from "./base.js";
import { cutMiddle, el, put } from "./dom.js";
import { NONE, duration, moment, number, spacedName } from "./format.js";
import { Grid } from "./grid.js";
import { outcomeOf, resultTag } from "./result.js";

const COLUMNS = [
  { name: "", of: (row, grid) => grid.picture(row), width: "54px" },
  {
    name: "Task",
    of: (row) => el("span", { title: `${row.suite} / ${row.task_id}` }, row.task_id),
    width: "minmax(6rem, 1.6fr)",
    sort: "task_id",
  },
  { name: "Suite", of: (row) => row.suite, width: "minmax(4rem, .7fr)", wide: 1500 },
  {
    name: "Group",
    title: "Same task, same seed",
    of: (row) => groupOf(row) ?? NONE,
    width: "5.2rem",
    wide: 1200,
  },
  { name: "Trajectory", of: (row) => cutMiddle(row.trajectory_id), width: "minmax(9rem, 1.2fr)" },
  { name: "Result", of: (row) => resultTag(outcomeOf(row)), width: "6.4rem" },
  { name: "End", of: (row) => spacedName(row.end), width: "minmax(5rem, .6fr)", sort: "end" },
  { name: "Reward", of: (row) => number(row.reward), width: "3.8rem", numeric: true, sort: "reward" },
  { name: "Steps", of: (row) => number(row.num_steps), width: "3.4rem", numeric: true, sort: "num_steps" },
  { name: "Version", of: (row) => versions(row), width: "4.3rem", numeric: true, sort: "policy_version_max" },
  {
    name: "Staleness",
    title: "Policy versions between acting and the end of the trajectory",
    of: (row) => row.staleness ?? NONE,
    width: "5rem",
    numeric: true,
    wide: 1280,
    sort: "staleness",
  },
  {
    name: "Device",
    title: "Device time of all its steps",
    of: (row) => (row.gpu_millis > 0 ? duration(row.gpu_millis * 1000) : NONE),
    width: "4.8rem",
    numeric: true,
    wide: 1400,
    sort: "gpu_millis",
  },
  {
    name: "Duration",
    title: "From its start to its end",
    of: (row) => el("span", { title: duration(row.life_millis * 1000) }, duration(row.life_millis * 1000)),
    width: "4.6rem",
    numeric: true,
    sort: "life_millis",
  },
  {
    name: "Ended",
    of: (row) => el("span", { title: moment(row.ended_at) }, moment(row.ended_at).slice(5)),
    width: "6.8rem",
    numeric: true,
    sort: "ended_at",
  },
];

/** The group's part of a trajectory's id, `g000030`. */
function groupOf(row) {
  return /-(g\d+)-s\d+-a\d+$/.exec(row.trajectory_id)?.[1];
}

export function versions(row) {
  if (row.policy_version_max === null) return NONE;
  return row.policy_version_min === row.policy_version_max
    ? row.policy_version_max
    : `${row.policy_version_min}–${row.policy_version_max}`;
}

export async function show(stage, { showNotices, go, isHere }) {
  const params = new URLSearchParams(location.search);
  let total = 0;
  let waiting = null;
  let isOpen = true;
  // The row that was opened from here, for a reader who comes back.
  const left = history.state;
  const sort = () => ({
    column: params.get("sort") ?? "ended_at",
    descending: params.get("order") !== "asc",
  });
  const matched = el("p", { class: "note", role: "status" });
  const wrong = el("p", { class: "notice hidden-empty", role: "alert" });

  const grid = new Grid({
    label: "Trajectories",
    columns: COLUMNS,
    fetch: async (offset, limit) => {
      const question = new URLSearchParams(params);
      question.set("offset", offset);
      question.set("limit", limit);
      const answer = await ask(`/api/trajectories?${question}`);
      total = answer.total;
      return answer;
    },
    id: (row) => row.trajectory_id,
    // The last step: how it stood when it ended.
    pictureOf: (row) =>
      row.num_steps > 0
        ? `/api/trajectory/${encodeURIComponent(row.trajectory_id)}/screenshot/${row.num_steps - 1}`
        : null,
    open: (row, index) => {
      history.replaceState({ id: row.trajectory_id, index }, "");
      go(`/trajectory/${encodeURIComponent(row.trajectory_id)}`);
    },
    at: left?.index,
    sorted: (column) => {
      const { column: before, descending } = sort();
      params.set("sort", column);
      params.set("order", column === before && descending ? "asc" : "desc");
      refresh(true);
    },
  });

  async function refresh(fromTop) {
    // The address is another page's by now.
    if (!isOpen || !isHere()) return;
    history.replaceState(
      fromTop ? null : history.state,
      "",
      within(params.size > 0 ? `/trajectories?${params}` : "/trajectories"),
    );
    try {
      await grid.refresh(sort(), fromTop);
      if (!isOpen || !isHere()) return;
      wrong.textContent = "";
      matched.textContent = grid.summary(total);
    } catch (error) {
      wrong.textContent = error.message;
    }
  }

  /** A field that asks as it is typed into; the last word counts. */
  function ask_for(name, value) {
    if (value === "") params.delete(name);
    else params.set(name, value);
    clearTimeout(waiting);
    waiting = setTimeout(() => refresh(true), 200);
  }

  const choices = await ask("/api/choices");
  showNotices(choices.head);
  const field = (label, name, input) => el("label", { class: "field" }, el("span", {}, label), input(name));
  const text = (props) => (name) =>
    el("input", {
      name,
      value: params.get(name) ?? "",
      autocomplete: "off",
      ...props,
      on: { input: (event) => ask_for(name, event.target.value.trim()) },
    });
  const select = (options) => (name) => {
    const chosen = params.get(name) ?? "";
    const option = ([value, label]) => el("option", { value, selected: value === chosen }, label);
    return el(
      "select",
      { name, on: { change: (event) => ask_for(name, event.target.value) } },
      option(["", "any"]),
      options.map(option),
    );
  };
  const optionsOf = (list) => list.map((value) => [value, spacedName(value)]);
  /** What came into the data set since is offered, too; nothing that stands there moves. */
  const offer = async () => {
    const now = await ask("/api/choices");
    if (!isOpen || !isHere()) return;
    showNotices(now.head);
    for (const [name, list] of Object.entries({ suite: now.suites, split: now.splits, end: now.ends })) {
      const choice = filters.elements.namedItem(name);
      const known = new Set([...choice.options].map((option) => option.value));
      for (const value of list)
        if (!known.has(value))
          choice.append(el("option", { value, selected: value === params.get(name) }, spacedName(value)));
    }
  };
  const range = (label, name, step) =>
    el(
      "div",
      { class: "field", role: "group", "aria-label": label },
      el("span", { "aria-hidden": "true" }, label),
      el(
        "span",
        { class: "range" },
        ["min", "max"].map((side) =>
          text({
            type: "number",
            step,
            placeholder: side,
            "aria-label": `${label}, ${side}`,
            class: "short",
          })(`${name}_${side}`),
        ),
      ),
    );

  const filters = el(
    "form",
    {
      class: "filters",
      role: "search",
      "aria-label": "Filters",
      on: { submit: (event) => event.preventDefault() },
    },
    field("Find", "text", text({ type: "search", placeholder: "task or id", id: "find" })),
    field("Suite", "suite", select(optionsOf(choices.suites))),
    field("Split", "split", select(optionsOf(choices.splits))),
    field(
      "Status",
      "status",
      select([
        ["scored", "scored"],
        ["failed", "failed"],
      ]),
    ),
    field("End", "end", select(optionsOf(choices.ends))),
    field(
      "Solved",
      "success",
      select([
        ["yes", "yes"],
        ["no", "no"],
      ]),
    ),
    range("Reward", "reward", "any"),
    range("Version", "version", 1),
    range("Steps", "steps", 1),
    el("button", { type: "button", on: { click: clear } }, "Clear"),
  );

  function clear() {
    for (const name of [...params.keys()]) params.delete(name);
    for (const input of filters.querySelectorAll("input")) input.value = "";
    for (const choice of filters.querySelectorAll("select")) choice.selectedIndex = 0;
    refresh(true);
  }

  const find = (event) => {
    if (event.key === "/" && !event.target.closest?.("input, select, textarea")) {
      event.preventDefault();
      filters.querySelector("#find").focus();
    }
  };
  document.addEventListener("keydown", find);

  const hint = el(
    "p",
    { class: "note" },
    el("kbd", {}, "/"),
    " finds, ",
    el("kbd", {}, "↑"),
    " ",
    el("kbd", {}, "↓"),
    " go through the rows, ",
    el("kbd", {}, "Enter"),
    " opens one.",
  );
  put(
    stage,
    el("h1", {}, "Trajectories"),
    filters,
    wrong,
    el("div", { class: "between" }, matched, hint),
    grid.node,
  );
  await refresh(false);
  if (left && isHere()) grid.comeBack(left.id);
  if (isHere()) grid.node.focus({ preventScroll: true });
  const update = inTurn(async () => {
    await refresh(false);
    await offer();
  });
  return {
    changed: () => update().catch(() => {}),
    close: () => {
      isOpen = false;
      clearTimeout(waiting);
      document.removeEventListener("keydown", find);
      grid.close();
    },
  };
}
