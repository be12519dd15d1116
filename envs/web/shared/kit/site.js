// What every site shares with the farm: one start, a probe, and state that lives in this browser context alone.
//
// A site calls `site({ name, world, state, show })` once a page: `world(draw)` makes the content, a pure function of the draw; `state(world)`
// is what a fresh visitor begins with; `show(world)` fills the page. The farm calls `furrow.start(task, seed, split)` on the first page and
// `furrow.probe()` on whatever page is in front. Tasks are in the site's own /tasks.js, which no page loads for itself.
//
// The world is drawn from (site, split, seed), the task from (task, split, seed): one split's worlds never occur in another.

import { draws } from "/kit/random.js";

const ABOUT = "furrow";
const STATE = "state";
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

/** The visitor's state: cart, login, choices. Change it through `change`. */
export const state = () => recall(STATE) ?? {};

/** Changes the state: `change((now) => { now.cart.push(item) })`. Listeners are told. */
export function change(edit) {
  const now = state();
  edit(now);
  localStorage.setItem(STATE, JSON.stringify(now));
  listeners.forEach((listener) => listener(now));
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
      change((now) => {
        now.failed = { ...now.failed, [name]: failed + 1 };
      });
      throw new Error("The service did not answer. Please try again.");
    }
    return act();
  };
  if (!millis) return Promise.resolve().then(finish);
  busy(1);
  return new Promise((resolve) => setTimeout(resolve, millis)).finally(() => busy(-1)).then(finish);
}

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
  world = here.world(draws(`${here.name}/${about.split}/${about.seed}`));
  if (!recall(STATE)) localStorage.setItem(STATE, JSON.stringify({ ...here.state(world), ...about.state }));
  document.documentElement.classList.remove("waiting");
  here.show(world);
}

async function made(about) {
  const { tasks } = await import("/tasks.js");
  if (!Object.hasOwn(tasks, about.task)) throw new Error(`furrow: this site has no task ${about.task}`);
  world ??= here.world(draws(`${here.name}/${about.split}/${about.seed}`));
  return tasks[about.task](world, draws(`${about.task}/${about.split}/${about.seed}`));
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
 * scorer compares with; a task has one or both. A task without a check has `correct: true`, one without an answer `expected: null`.
 * Nothing here ends a trajectory: the policy says itself when it is done.
 */
async function probe() {
  const about = recall(ABOUT);
  if (!about) return { done: false, correct: false, expected: null };
  const { correct, expected = null } = await made(about);
  const now = state();
  return {
    task: about.task,
    seed: about.seed,
    split: about.split,
    done: false,
    correct: correct ? Boolean(correct(now)) : true,
    expected,
    state: now,
  };
}

function recall(key) {
  return JSON.parse(localStorage.getItem(key));
}

addEventListener("storage", ({ key }) => {
  if (key === STATE && world) listeners.forEach((listener) => listener(state()));
});

window.furrow = Object.freeze({ start, probe });
