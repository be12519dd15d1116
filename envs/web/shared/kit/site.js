// What every site shares with the farm: one start, one grade, and state that lives in this browser context alone.
//
// A site calls `site({ name, world, state, transitions, harmless, show })` once a page: `world(draw)` makes the content, a pure function of the
// draw; `state(world)` is what a fresh visitor begins with; `transitions` are all ways in which it changes (transitions.js); `harmless` names
// the parts of it that a visitor who only looks around may change; `show(world)` fills the page. The farm calls `furrow.start(task, seed, split)`
// on the first page and `furrow.grade()` at the end, in a page of its own that no policy acted in. Tasks are in the site's own /tasks.js, which
// no page loads for itself.
//
// The world is drawn from (site, split, seed), the task from (task, split, seed): one split's worlds never occur in another.

import { draws } from "/kit/random.js";

const ABOUT = "furrow";
const STATE = "state";
const JOURNAL = "journal";
let here = null;
let world = null;
const listeners = [];

/** Declares the site. A page loaded after the start shows its content at once; before it, an empty frame. */
export function site(definition) {
  here = definition;
  const about = recall(ABOUT);
  // After the rest of the site's module, whose functions `show` uses.
  if (about) queueMicrotask(() => open(about));
}

/** The visitor's state: cart, login, choices. It changes through `apply` alone. */
export const state = () => recall(STATE) ?? {};

/**
 * Changes the state by one of the site's transitions: `apply("cart.add", { id, quantity })`. `args` are plain data. The journal keeps name and
 * arguments: at the end the state must be what the journal leads to. Throws where the transition refuses. Listeners are told.
 */
export function apply(name, args = {}) {
  const entry = JSON.parse(JSON.stringify([name, args]));
  const now = reduced(state(), entry, recall(ABOUT).conditions);
  localStorage.setItem(JOURNAL, JSON.stringify([...(recall(JOURNAL) ?? []), entry]));
  localStorage.setItem(STATE, JSON.stringify(now));
  listeners.forEach((listener) => listener(now));
}

/** The state after an entry of the journal, as it is kept. */
function reduced(before, [name, args], conditions) {
  const now = JSON.parse(JSON.stringify(before));
  const of = Object.hasOwn(ownTransitions, name) ? ownTransitions : here.transitions;
  if (!Object.hasOwn(of, name)) throw new Error(`kit: this site has no transition ${name}`);
  of[name](now, args, world, conditions);
  return JSON.parse(JSON.stringify(now));
}

/** Calls back after every change, in this tab or another. */
export function onChange(listener) {
  listeners.push(listener);
}

/** A request to the site's imaginary server. Tasks may have it take long or fail: `conditions: { checkout: { millis: 1500, failures: 1 } }`. */
export function request(name, act) {
  const { millis = 0, failures = 0 } = recall(ABOUT)?.conditions?.[name] ?? {};
  const failed = state().failed?.[name] ?? 0;
  const finish = () => {
    if (failed < failures) {
      apply(FAILURE, { request: name });
      throw new Error("The service did not answer. Please try again.");
    }
    return act();
  };
  if (!millis) return Promise.resolve().then(finish);
  busy(1);
  return new Promise((resolve) => setTimeout(resolve, millis)).finally(() => busy(-1)).then(finish);
}

/** The transition of a request that fails because the task says so. */
const FAILURE = "request failed";

/** Transitions that every site has. */
const ownTransitions = {
  [FAILURE](now, { request }, _world, conditions) {
    const failed = now.failed?.[request] ?? 0;
    if (failed >= (conditions?.[request]?.failures ?? 0)) throw new Error(`kit: ${request} does not fail`);
    now.failed = { ...now.failed, [request]: failed + 1 };
  },

  /** A button of the cookie banner (`cookieBanner` in ui.js). */
  cookies(now, { choice }) {
    if (!["necessary", "all"].includes(choice)) throw new Error("kit: the banner has no such button");
    now.cookies = choice;
  },
};

/** While a request is under way buttons are grey and do nothing: who presses twice does not send twice. */
function busy(more) {
  pending += more;
  document.documentElement.classList.toggle("busy", pending > 0);
}
let pending = 0;
for (const kind of ["submit", "click"]) {
  addEventListener(
    kind,
    (event) => {
      if (!pending || (kind === "click" && !event.target.closest?.("button"))) return;
      event.preventDefault();
      event.stopImmediatePropagation();
    },
    true,
  );
}

/** The page's query, as a plain object of texts. */
export const query = () => Object.fromEntries(new URLSearchParams(location.search));

/** An address with its query; empty values are left out. */
export function href(path, values = {}) {
  const kept = Object.entries(values).filter(
    ([, value]) => value !== undefined && value !== null && value !== "" && value !== false,
  );
  const text = new URLSearchParams(kept).toString();
  return text ? `${path}?${text}` : path;
}

function open(about) {
  if (!recall(STATE)) localStorage.setItem(STATE, JSON.stringify(firstState(about)));
  document.documentElement.classList.remove("waiting");
  here.show(worldOf(about));
}

function worldOf(about) {
  world ??= here.world(draws(`${here.name}/${about.split}/${about.seed}`));
  return world;
}

async function made(about) {
  const { tasks } = await import("/tasks.js");
  if (!Object.hasOwn(tasks, about.task)) throw new Error(`furrow: this site has no task ${about.task}`);
  return tasks[about.task](worldOf(about), draws(`${about.task}/${about.split}/${about.seed}`));
}

/** Draws the content and the task, shows the page and returns the goal. */
async function start(task, seed, split) {
  if (recall(ABOUT))
    throw new Error("furrow.start: already started; use a fresh browser context for another seed");
  const about = { task, seed: String(seed), split };
  const { goal, state: begun, conditions } = await made(about);
  localStorage.setItem(ABOUT, JSON.stringify({ ...about, conditions, state: begun }));
  open({ ...about, state: begun });
  return goal;
}

/**
 * What the visitor has brought about, and whether it is what the task asked for. `correct` judges the state, `expected` is the answer that a
 * scorer compares with; a task has one or both. A task without a check has `correct: true`, one without an answer `expected: null`. Parts of
 * the state that are neither harmless nor named in the task's `touches` must be as they were (`void: "side_effects"`, a 0). Nothing here ends a
 * trajectory: the policy says itself when it is done.
 */
async function report(about, now) {
  const { correct, expected = null, touches = [] } = await made(about);
  const begun = firstState(about);
  const mayChange = new Set([...(here.harmless ?? Object.keys(now)), ...touches, "failed"]);
  const differs = (part) => JSON.stringify(now[part]) !== JSON.stringify(begun[part]);
  const effects = Object.keys({ ...begun, ...now }).filter((part) => !mayChange.has(part) && differs(part));
  return {
    task: about.task,
    seed: about.seed,
    split: about.split,
    done: false,
    correct: correct ? Boolean(correct(now)) : true,
    expected,
    state: now,
    ...(effects.length ? { void: "side_effects", why: effects.join(", ") } : {}),
  };
}

/** Most transitions that a press or an entry leads to: a form that is sent, what it shows, and two more. */
const TRANSITIONS_OF_AN_INPUT = 4;
/** Most that follow of themselves in a step: a page that was visited, and what an earlier press had to wait for. */
const TRANSITIONS_OF_A_STEP = 2;

/** What is wrong with how the journal grew, empty if nothing is. Steps on other pages count with the next one on the site. */
function journalGrowth(steps) {
  let entries = 0;
  let most = 0;
  for (const step of steps) {
    most += step.inputs * TRANSITIONS_OF_AN_INPUT + Math.max(1, step.actions) * TRANSITIONS_OF_A_STEP;
    if (step.entries === null) continue;
    if (step.entries < entries) return "the journal became shorter";
    if (step.entries - entries > most) return "more happened in a step than its actions can cause";
    entries = step.entries;
    most = 0;
  }
  return "";
}

const firstState = (about) => JSON.parse(JSON.stringify({ ...here.state(worldOf(about)), ...about.state }));

/** The report of the page in front, for a person who looks at it. */
async function probe() {
  const about = recall(ABOUT);
  return about ? report(about, state()) : { done: false, correct: false, expected: null };
}

/**
 * The report that counts. The farm calls this in a page of a context of its own, with the storage of the site as the task began and as it ended:
 * nothing that a policy did to its pages reaches this one. `steps` says of each step how many actions it had, how many of them were input to a
 * page, and how many entries the journal had after it. A state that the journal does not lead to, or a journal that grew otherwise than by
 * actions, is `void: "tampered"`, a 0.
 */
async function grade(begun, ended, steps = []) {
  const about = JSON.parse(begun[ABOUT]);
  // The task itself comes from the site's files alone: if it cannot be made, that is no doing of the policy.
  await made(about);
  const why = tampering(about, begun, ended, steps);
  if (why) return { done: false, correct: false, expected: null, void: "tampered", why };
  return report(about, JSON.parse(ended[STATE]));
}

/** What shows that the storage was written by something else than the site's pages; empty if nothing does. */
function tampering(about, begun, ended, steps) {
  if (ended[ABOUT] !== begun[ABOUT]) return "another task";
  let now = firstState(about);
  try {
    const journal = JSON.parse(ended[JOURNAL] ?? "[]");
    // What came after the last step counts as well.
    const growth = journalGrowth([...steps, { actions: 1, inputs: 0, entries: journal.length }]);
    if (growth) return growth;
    for (const entry of journal) now = reduced(now, entry, about.conditions);
  } catch (error) {
    return `the journal: ${String(error).slice(0, 200)}`;
  }
  return JSON.stringify(now) === ended[STATE] ? "" : "the state is not what the journal leads to";
}

function recall(key) {
  return JSON.parse(localStorage.getItem(key));
}

addEventListener("storage", ({ key }) => {
  if (key === STATE && world) listeners.forEach((listener) => listener(state()));
});

// Neither the object nor its name can be replaced.
Object.defineProperty(window, "furrow", { value: Object.freeze({ start, probe, grade }) });
