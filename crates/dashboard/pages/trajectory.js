// One trajectory: its goal and result, a strip of its steps, one step at a time. All of it comes from pages and models: shown as text only.

import { describe } from "./action.js";
import { ask } from "./ask.js";
import { cutMiddle, el, put } from "./dom.js";
import { number, plural, spacedName } from "./format.js";
import { recorded } from "./picture.js";
import { outcomeOf, resultTag, wentWrong } from "./result.js";
import { account, frame, pictureOf, ratioOf, shot } from "./step.js";
import { stepList } from "./step_list.js";
import { below } from "./trajectory_facts.js";

export async function show(stage, { showNotices, go }) {
  const id = decodeURIComponent(location.pathname.split("/").pop());
  const base = `/api/trajectory/${encodeURIComponent(id)}`;
  const { trajectory, steps, siblings, head } = await ask(base);
  showNotices(head);
  const dialog = el("dialog", { class: "raw", "aria-label": "Raw row" });
  const raw = (step) => openRow(dialog, base, step);
  const viewer = makeViewer(base, trajectory, steps, raw);

  put(
    stage,
    el(
      "div",
      { class: "between heading" },
      el(
        "nav",
        { class: "crumbs", "aria-label": "Way back" },
        el("a", { href: "/trajectories" }, "Trajectories"),
        " / ",
        el(
          "a",
          { href: `/trajectories?task_id=${encodeURIComponent(trajectory.task_id)}` },
          trajectory.task_id,
        ),
        " /",
      ),
      el("h1", {}, cutMiddle(trajectory.trajectory_id)),
      el("button", { type: "button", on: { click: () => raw(null) } }, "Raw row"),
    ),
    goal(trajectory),
    viewer.node,
    below(base, trajectory, siblings, id),
    dialog,
  );
  viewer.start();

  const sibling = (offset) => {
    const index = siblings.findIndex((row) => row.trajectory_id === id) + offset;
    if (siblings[index]) go(`/trajectory/${encodeURIComponent(siblings[index].trajectory_id)}`);
  };
  const moves = {
    ArrowRight: () => viewer.move(1),
    j: () => viewer.move(1),
    ArrowLeft: () => viewer.move(-1),
    k: () => viewer.move(-1),
    Home: () => viewer.move(-Infinity),
    End: () => viewer.move(Infinity),
    a: () => viewer.turnOver(),
    r: () => raw(viewer.step()?.step ?? null),
    "[": () => sibling(-1),
    "]": () => sibling(1),
  };
  const key = (event) => {
    if (dialog.open || event.defaultPrevented || event.metaKey || event.ctrlKey || event.altKey) return;
    if (event.target.closest?.("input, select, textarea") || !(event.key in moves)) return;
    event.preventDefault();
    moves[event.key]();
  };
  const follow = () => viewer.openAddress();
  document.addEventListener("keydown", key);
  window.addEventListener("hashchange", follow);
  return {
    close: () => {
      document.removeEventListener("keydown", key);
      window.removeEventListener("hashchange", follow);
    },
  };
}

async function openRow(dialog, base, step) {
  const row = await ask(step === null ? `${base}/row` : `${base}/row?step=${step}`).catch((error) => ({
    error: error.message,
  }));
  if (!dialog.isConnected || dialog.open) return;
  const close = el("button", { type: "button", on: { click: () => dialog.close() } }, "Close");
  put(
    dialog,
    el(
      "div",
      { class: "between" },
      el("h2", {}, step === null ? "Row of trajectories" : `Row of steps, step = ${step}`),
      close,
    ),
    el("pre", { tabindex: "0" }, JSON.stringify(row, null, 2)),
  );
  dialog.showModal();
}

/** What was asked and how it came out: it stays in sight while the steps are read. */
function goal(row) {
  const why = row.status === "failed" ? row.failure_reason : row.score?.rationale || row.failure_reason;
  return el(
    "section",
    { class: "goal-bar", "aria-label": "Goal and result" },
    el("p", { class: "goal" }, row.goal || "The task's page gives the instruction itself."),
    el(
      "p",
      { class: "result" },
      resultTag(outcomeOf(row), "large"),
      " ",
      row.reward === null ? null : el("span", { class: "strong" }, `reward ${number(row.reward)}`),
      el(
        "span",
        { class: "note" },
        ` ended by ${spacedName(row.end)} after ${plural(row.num_steps, "step")}`,
      ),
      why ? el("span", { class: "why" }, `: ${why}`) : null,
    ),
  );
}

/**
 * The strip and the step that is open. Frames are the steps, and the last page where its picture was kept. The address of a
 * frame is `#step=3` as the page counts, or `#end`.
 */
function makeViewer(base, trajectory, steps, raw) {
  const frames = steps.map((step) => ({ step, hash: `#step=${step.step + 1}` }));
  if (trajectory.evidence?.screenshot) frames.push({ step: null, hash: "#end" });
  const folds = new Set();
  const panel = el("article", { class: "card step", id: "step", role: "tabpanel", tabindex: "0" });
  const tabs = frames.map((one, index) => tab(base, one, () => open(index)));
  const strip = el("div", { class: "strip", role: "tablist", "aria-label": "Steps" }, tabs);
  let at = -1;

  function open(index, isQuiet) {
    if (frames.length === 0) return;
    const before = at;
    at = Math.max(0, Math.min(frames.length - 1, index));
    if (at === before) return;
    tabs[before]?.setAttribute("aria-selected", "false");
    tabs[before]?.setAttribute("tabindex", "-1");
    tabs[at].setAttribute("aria-selected", "true");
    tabs[at].setAttribute("tabindex", "0");
    if (tabs.includes(document.activeElement)) tabs[at].focus({ preventScroll: true });
    // Only the strip moves, and only as far as it must.
    const [left, right] = [tabs[at].offsetLeft - 8, tabs[at].offsetLeft + tabs[at].offsetWidth + 8];
    if (left < strip.scrollLeft) strip.scrollLeft = left;
    else if (right > strip.scrollLeft + strip.clientWidth) strip.scrollLeft = right - strip.clientWidth;
    const { step } = frames[at];
    panel.setAttribute("aria-label", step ? `Step ${step.step + 1}` : "Last page");
    put(panel, step ? ofStep(step) : ofEnd());
    if (!isQuiet) history.replaceState(history.state, "", frames[at].hash);
  }

  const ofStep = (step) =>
    el(
      "div",
      { class: "step-body", style: { "--ratio": ratioOf(step.observation) } },
      el("div", {}, sides(step)),
      el(
        "div",
        { class: "account" },
        turner(`Step ${step.step + 1} of ${steps.length}`),
        account(step, folds, raw),
      ),
    );

  /** The page that the policy saw, with the action marked, and what it was after the action: the next frame. */
  const sides = (step) => {
    const below = where(step.observation.title, step.observation.url);
    const before = shot(base, step);
    const next = frames[at + 1];
    if (!next) return [before, below];
    const picture = el("div", {}, before);
    const side = (name, shown) => {
      const press = () => {
        put(picture, shown());
        buttons.forEach((button) => button.setAttribute("aria-pressed", String(button === own)));
      };
      const own = el("button", { type: "button", class: "quiet", on: { click: press } }, name);
      return own;
    };
    const after = () =>
      frame(recorded({ src: addressOf(base, next), alt: `Screenshot after step ${step.step + 1}` }), null);
    const buttons = [side("Before", () => before), side("After", after)];
    buttons[0].setAttribute("aria-pressed", "true");
    buttons[1].setAttribute("aria-pressed", "false");
    const choice = el("span", { class: "sides", role: "group", "aria-label": "The page" }, buttons);
    return [picture, el("div", { class: "between" }, below, choice)];
  };

  const ofEnd = () => {
    const { evidence } = trajectory;
    const picture = recorded({ src: addressOf(base, { step: null }), alt: "Screenshot of the last page" });
    const last = steps[steps.length - 1]?.observation ?? {};
    return el(
      "div",
      { class: "step-body", style: { "--ratio": ratioOf(last) } },
      el("div", {}, frame(picture, null), where(evidence.title, evidence.url)),
      el(
        "div",
        { class: "account" },
        turner("Last page"),
        el("p", {}, `What the scorer got after the end: ${spacedName(trajectory.end)}.`),
        evidence.answer ? [el("h3", {}, "Answer"), el("p", { class: "action" }, evidence.answer)] : null,
      ),
    );
  };

  const turner = (title) =>
    el(
      "div",
      { class: "between turner" },
      el("h2", {}, title),
      el(
        "span",
        {},
        turn("←", "Step before", -1, at === 0),
        turn("→", "Next step", 1, at === frames.length - 1),
      ),
    );
  const turn = (sign, label, offset, disabled) =>
    el(
      "button",
      {
        type: "button",
        class: "quiet",
        id: offset < 0 ? "step-before" : "step-after",
        "aria-label": label,
        title: `${label} (${sign})`,
        disabled,
        on: { click: () => turnTo(offset) },
      },
      sign,
    );
  /** The buttons are made anew with each step: the focus stays on the one that was pressed. */
  const turnTo = (offset) => {
    open(at + offset);
    const pressed = document.getElementById(offset < 0 ? "step-before" : "step-after");
    (pressed?.disabled ? panel : pressed)?.focus({ preventScroll: true });
  };

  /** The frame that the address names; none for an address of something else. */
  const named = () => {
    // The form of earlier versions counted as the rows do.
    const older = /^#step-(\d+)$/.exec(location.hash);
    const hash = older ? `#step=${Number(older[1]) + 1}` : location.hash;
    return frames.findIndex((one) => one.hash === hash);
  };

  const wrong = frames.filter(({ step }) => step && wentWrong(step));
  return {
    node: [
      steps.length === 0
        ? el(
            "p",
            { class: "card" },
            trajectory.num_steps > 0
              ? `It had ${plural(trajectory.num_steps, "step")}, none of which is stored: ${trajectory.failure_reason || spacedName(trajectory.end)}.`
              : "No step is recorded: the attempt ended before its first action.",
          )
        : null,
      frames.length > 0 ? strip : null,
      frames.length > 0 ? hints(wrong) : null,
      frames.length > 0 ? panel : null,
      steps.length > 1 ? stepList(steps) : null,
    ],
    /** Opens what the address names, else the step to look at first. */
    start: () => {
      const index = named();
      if (index >= 0) open(index, true);
      else open(firstToSee(trajectory, steps, frames.indexOf(wrong[0])), true);
    },
    openAddress: () => {
      const index = named();
      if (index >= 0) open(index, true);
      // From the list below, which may be a screen away.
      if (panel.getBoundingClientRect().top < 0) strip.scrollIntoView();
    },
    move: (offset) => open(at + offset),
    step: () => frames[at]?.step,
    /** The page before the action instead of that after it, or the other way. */
    turnOver: () => panel.querySelector(".sides [aria-pressed='false']")?.click(),
  };
}

/** Of a solved trajectory the first step; of a failed one the last; of an unsolved one the first that went wrong. */
function firstToSee(trajectory, steps, firstWrong) {
  const result = outcomeOf(trajectory);
  if (result === "failed") return Math.max(0, steps.length - 1);
  return result === "unsolved" ? Math.max(0, firstWrong) : 0;
}

/** The address of a frame's picture. */
function addressOf(base, { step }) {
  return step ? pictureOf(base, step) : `${base}/screenshot/evidence`;
}

function tab(base, one, open) {
  const { step, hash } = one;
  const isWrong = step !== null && wentWrong(step);
  const label = step
    ? `${step.step + 1} ${step.action.valid ? spacedName(step.action.kind) : "no action"}`
    : "End";
  return el(
    "button",
    {
      type: "button",
      role: "tab",
      class: isWrong ? "thumb wrong-step" : "thumb",
      "aria-selected": "false",
      "aria-controls": "step",
      tabindex: "-1",
      "data-hash": hash,
      title: step ? `${describe(step.action)}: ${spacedName(step.outcome.name)}` : "The last page",
      on: { click: open },
    },
    recorded(
      {
        src: addressOf(base, one),
        alt: "",
        loading: "lazy",
        decoding: "async",
      },
      "not stored",
    ),
    el("span", { class: "label" }, isWrong ? "! " : "", label),
  );
}

function hints(wrong) {
  const few = wrong.slice(0, 6);
  return el(
    "div",
    { class: "between hints" },
    el(
      "p",
      { class: "note", id: "went-wrong" },
      wrong.length === 0
        ? "Every action was carried out."
        : [
            `${plural(wrong.length, "action")} not carried out: `,
            few.map(({ step, hash }, index) => [
              index > 0 ? ", " : "",
              el("a", { href: hash }, `step ${step.step + 1}`),
              ` (${spacedName(step.outcome.name)})`,
            ]),
            wrong.length > few.length ? " …" : "",
          ],
    ),
    el(
      "p",
      { class: "note" },
      el("kbd", {}, "←"),
      " ",
      el("kbd", {}, "→"),
      " steps, ",
      el("kbd", {}, "["),
      " ",
      el("kbd", {}, "]"),
      " siblings, ",
      el("kbd", {}, "a"),
      " before and after, ",
      el("kbd", {}, "r"),
      " raw row",
    ),
  );
}

function where(title, url) {
  return el("p", { class: "where" }, el("strong", {}, title || "(no title)"), " ", el("code", {}, url));
}
