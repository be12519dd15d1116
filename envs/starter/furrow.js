// Shared by every page of the starter suite: content drawn from the seed, one start, a probe, and state that outlives a page load.
//
// The farm calls `furrow.start(seed)` once, on the task's first page, and `furrow.probe()` on whatever page or tab is in front.
// A page calls `furrow.task({ name, make, show })`: `make(draw)` returns the world (its `goal` included) as a pure function of the
// seed, `show(world)` fills the page. Everything is shown anew from the seed after each page load.
"use strict";

(() => {
  // A browser context lives exactly as long as one trajectory and shares localStorage between its tabs, so one entry is enough.
  const ENTRY = "furrow";
  const HUES = [206, 158, 262, 14, 338, 186, 96, 232];
  const WORD = (1n << 64n) - 1n;
  let task = null;
  let world = null;

  // ---- the contract with the farm ----

  /** Draws the content from the seed, shows it and returns the goal. */
  function start(seed) {
    if (!task) throw new Error("furrow.start: this page belongs to no task");
    if (recall())
      throw new Error("furrow.start: already started; use a fresh browser context for another seed");
    world = task.make(draws(`${task.name}/${seed}`));
    store({ task: task.name, seed: String(seed), done: false, correct: false, ...world.facts });
    open();
    return world.goal;
  }

  /** What has happened so far. Wherever the trajectory has wandered on this site, it is told of the task that was started. */
  function probe() {
    return recall() ?? { done: false, correct: false };
  }

  // ---- for the pages ----

  /** Names this page's task. A page loaded after the start (reload, second page, new tab) shows its content at once. */
  function define(definition) {
    task = definition;
    const state = recall();
    if (state?.task !== task.name) return;
    world = task.make(draws(`${task.name}/${state.seed}`));
    open();
  }

  /** Ends the task. The first end holds. */
  function finish(correct, facts) {
    if (recall().done) return;
    store({ ...recall(), ...facts, done: true, correct });
    seal();
  }

  /** Remembers a fact across pages and tabs; the probe shows it. */
  function note(facts) {
    store({ ...recall(), ...facts });
  }

  /** An element: `element("p", { class: "soft" }, "text", child)`. Attributes starting with `on` are listeners. */
  function element(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value === true) node.setAttribute(name, "");
      else if (value !== false && value !== null) node.setAttribute(name, value);
    }
    node.append(...children);
    return node;
  }

  /** The text a person would say a field holds. */
  function tidy(text) {
    return text.trim().replace(/\s+/g, " ");
  }

  // ---- below ----

  function open() {
    const state = recall();
    document.documentElement.style.setProperty("--hue", draws(`hue/${state.task}/${state.seed}`).one(HUES));
    document.documentElement.classList.remove("waiting");
    task.show(world);
    if (state.done) seal();
  }

  // Says that it is over, not whether it was right.
  function seal() {
    if (document.querySelector(".sealed")) return;
    for (const part of document.body.children) part.inert = true;
    document.activeElement?.blur();
    document.body.append(
      element("div", { class: "sealed", role: "status" }, element("p", {}, "Your entry was saved.")),
    );
  }

  function recall() {
    return JSON.parse(localStorage.getItem(ENTRY));
  }

  function store(state) {
    localStorage.setItem(ENTRY, JSON.stringify(state));
  }

  // Random numbers named by a text: FNV-1a spreads the text over 64 bits, SplitMix64 walks on from there.
  function draws(text) {
    let state = 0xcbf29ce484222325n;
    for (const byte of new TextEncoder().encode(text))
      state = ((state ^ BigInt(byte)) * 0x100000001b3n) & WORD;
    const next = () => {
      state = (state + 0x9e3779b97f4a7c15n) & WORD;
      let mixed = ((state ^ (state >> 30n)) * 0xbf58476d1ce4e5b9n) & WORD;
      mixed = ((mixed ^ (mixed >> 27n)) * 0x94d049bb133111ebn) & WORD;
      return mixed ^ (mixed >> 31n);
    };
    const below = (count) => Number(next() % BigInt(count));
    const some = (list, count) => {
      const rest = [...list];
      return Array.from({ length: count }, () => rest.splice(below(rest.length), 1)[0]);
    };
    return {
      below,
      some,
      between: (low, high) => low + below(high - low + 1),
      one: (list) => list[below(list.length)],
      shuffled: (list) => some(list, list.length),
      coin: () => below(2) === 1,
    };
  }

  // Another tab of this context wrote: show what it did.
  addEventListener("storage", () => {
    if (!world) return;
    if (recall().done) seal();
    else task.changed?.(world);
  });

  window.furrow = Object.freeze({ start, probe, task: define, finish, note, element, tidy });
})();
