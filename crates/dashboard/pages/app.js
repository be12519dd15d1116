// Shows the page that the address names, and passes on to it that something changed.

import { subscribe } from "./ask.js";
import { base, isOfAllRuns, pathWithin, within } from "./base.js";
import * as compare from "./compare.js";
import { el, put } from "./dom.js";
import { count } from "./format.js";
import * as job from "./job.js";
import * as learning from "./learning.js";
import * as overview from "./overview.js";
import * as runs from "./runs.js";
import * as sessions from "./sessions.js";
import * as trajectories from "./trajectories.js";
import * as trajectory from "./trajectory.js";

const PAGES = [
  { path: "/", name: "Overview", page: overview, key: "1" },
  { path: "/sessions", name: "Sessions", page: sessions, key: "2" },
  { path: "/trajectories", name: "Trajectories", page: trajectories, key: "3" },
  { path: "/learning", name: "Learning", page: learning, key: "4" },
  { path: "/job", name: "Job", page: job, key: "5" },
];

/** Of a dashboard over a folder of runs. */
const OVER_RUNS = [
  { path: "/runs", name: "Runs", page: runs },
  { path: "/compare", name: "Compare", page: compare },
];

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const status = document.getElementById("status");
const notices = document.getElementById("notices");
const theme = document.getElementById("theme");

let currentPage = null;
let newest = null;
/** What the answer that is shown says of itself; none before the first, or of a page that does not say. */
let lastHead = null;
/** Something changed while the page was being read, or since it could not be read. */
let isMissed = false;
let turns = 0;
let address = "";

const pages = () => (isOfAllRuns() ? OVER_RUNS : PAGES);

function page() {
  const path = pathWithin();
  if (path.startsWith("/trajectory/")) return { ...PAGES[2], page: trajectory };
  return pages().find((entry) => entry.path === path) ?? pages()[0];
}

async function show(focus) {
  address = location.pathname + location.search;
  const entry = page();
  put(
    nav,
    base() === "" ? null : el("a", { href: "/runs" }, "Runs"),
    pages().map(({ path, name, key }) =>
      el(
        "a",
        { href: path, "aria-current": path === entry.path ? "page" : null, "aria-keyshortcuts": key },
        name,
      ),
    ),
  );
  document.title = `${entry.name} · ${document.getElementById("run-name").textContent}`;
  // A page that was left while it was still being read writes into nothing.
  const stage = el("div", {}, el("p", { class: "note" }, "Reading…"));
  put(main, stage);
  if (focus) main.focus({ preventScroll: true });
  await read(entry, stage);
}

/** Reads a page into its stage. One that cannot be read says why, and is tried again when something changed. */
async function read(entry, stage) {
  currentPage?.close?.();
  currentPage = null;
  lastHead = null;
  isMissed = false;
  const turn = ++turns;
  const isHere = () => turn === turns;
  try {
    const opened = await entry.page.show(stage, {
      showNotices: (head) => isHere() && showNotices(head),
      go,
      isHere,
    });
    if (!isHere()) {
      opened?.close?.();
      return;
    }
    currentPage = opened ?? {};
    if (!stage.isConnected) put(main, stage);
    if (isMissed && isNews(newest)) currentPage.changed?.(newest);
  } catch (error) {
    if (!isHere()) return;
    const retry = () => isHere() && read(entry, el("div"));
    put(
      main,
      el(
        "section",
        { class: "card" },
        el("h1", {}, "This cannot be shown"),
        el("p", {}, error.message),
        el("p", {}, el("a", { href: "/" }, "Back to the overview")),
      ),
    );
    currentPage = { changed: retry };
    // What came meanwhile may be what was missing; a moment later, so that no page asks without a pause.
    if (isMissed) setTimeout(retry, 1000);
  }
}

/** Whether a message of the server is about something else than the answer that is shown. */
function isNews(change) {
  return (
    change.live ||
    !lastHead ||
    ["version", "generation", "trajectories", "step_files_left", "lines"].some(
      (name) => lastHead[name] !== change[name],
    )
  );
}

/** Goes to one of our pages; within a run without loading everything again. */
function go(to) {
  const path = within(to);
  if (base() !== base(path)) {
    location.assign(path);
    return;
  }
  if (path === location.pathname + location.search) return;
  history.pushState(null, "", path);
  window.scrollTo(0, 0);
  show(true);
}

/** Shows above the page whose metrics these are and what is missing of them. */
function showNotices(head) {
  lastHead = head;
  document.getElementById("run-name").textContent = head.name;
  document.title = `${page().name} · ${head.name}`;
  const messages = [...head.problems];
  if (head.step_files_left > 0)
    messages.push(
      `Figures over steps are of a part: ${count(head.step_files_left)} files are still being read.`,
    );
  if (head.left_out > 0)
    messages.push(
      `${count(head.left_out)} trajectories are beyond what the table holds; figures count them.`,
    );
  put(
    notices,
    messages.map((text) => el("p", { class: "notice" }, text)),
  );
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (
    !link ||
    event.defaultPrevented ||
    event.button !== 0 ||
    event.metaKey ||
    event.ctrlKey ||
    event.shiftKey ||
    event.altKey
  )
    return;
  const href = link.getAttribute("href");
  if (!href.startsWith("/") || pathWithin(href).startsWith("/api/")) return;
  event.preventDefault();
  go(href);
});

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.metaKey || event.ctrlKey || event.altKey) return;
  if (event.target.closest?.("input, select, textarea, dialog")) return;
  const entry = pages().find(({ key }) => key === event.key);
  if (entry) {
    event.preventDefault();
    go(entry.path);
  }
});

// A link to a step of the same page leads to no other page.
window.addEventListener("popstate", () => {
  if (address !== location.pathname + location.search) show(true);
});

// The theme: the system's until the reader chooses; then light, dark, and the system's again.
const THEMES = ["system", "light", "dark"];
function dress(choice) {
  if (choice === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
  theme.textContent = `Theme: ${choice}`;
}
/** What was chosen, where the browser keeps anything. */
function kept(chosen) {
  try {
    if (chosen) localStorage.setItem("theme", chosen);
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
}
let choice = THEMES.includes(kept()) ? kept() : "system";
dress(choice);
theme.addEventListener("click", () => {
  choice = THEMES[(THEMES.indexOf(choice) + 1) % THEMES.length];
  kept(choice);
  dress(choice);
});

document.querySelector(".brand").setAttribute("href", isOfAllRuns() ? "/runs" : within("/"));

/** The pages over all runs ask by themselves: there is one stream of changes a run, and a browser keeps six connections. */
function follow() {
  subscribe(
    (change) => {
      const isFirst = newest === null;
      newest = change;
      status.textContent = change.trouble
        ? `cannot read: ${change.trouble}`
        : `${count(change.trajectories)} trajectories`;
      status.title = `committed; commit ${change.version}`;
      status.classList.toggle("bad", Boolean(change.trouble));
      if (!currentPage) isMissed = true;
      // The first message says what is there: news only where the page was answered before it.
      else if (!isFirst || isNews(change)) currentPage.changed?.(change);
    },
    (isLost) => {
      if (isLost) status.textContent = "not connected; trying again";
      status.classList.toggle("bad", isLost);
    },
  );
}
if (!isOfAllRuns()) follow();

show(false);
