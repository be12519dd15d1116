// Shows the page that the address names, and tells it when something changed.

import { hear } from "./ask.js";
import { el, put } from "./dom.js";
import { count } from "./format.js";
import * as job from "./job.js";
import * as learning from "./learning.js";
import * as overview from "./overview.js";
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

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const status = document.getElementById("status");
const notices = document.getElementById("notices");
const theme = document.getElementById("theme");

let shown = null;
let newest = null;
let turns = 0;
let address = "";

function page() {
  const path = location.pathname;
  if (path.startsWith("/trajectory/")) return { ...PAGES[2], page: trajectory };
  return PAGES.find((entry) => entry.path === path) ?? PAGES[0];
}

async function show(focus) {
  shown?.close?.();
  shown = null;
  address = location.pathname + location.search;
  const entry = page();
  put(nav, PAGES.map(({ path, name, key }) => el("a", { href: path, "aria-current": path === entry.path ? "page" : null, "aria-keyshortcuts": key }, name)));
  document.title = `${entry.name} · ${document.getElementById("run-name").textContent}`;
  // A page that was left while it was still being read writes into nothing.
  const stage = el("div", {}, el("p", { class: "note" }, "Reading…"));
  put(main, stage);
  if (focus) main.focus({ preventScroll: true });
  const turn = ++turns;
  try {
    const opened = await entry.page.show(stage, { tell, go });
    if (turn === turns) shown = opened;
    else opened?.close?.();
  } catch (error) {
    put(stage, el("section", { class: "card" }, el("h1", {}, "This cannot be shown"), el("p", {}, error.message), el("p", {}, el("a", { href: "/" }, "Back to the overview"))));
  }
}

/** Goes to one of our pages without loading everything again. */
function go(path) {
  if (path === location.pathname + location.search) return;
  history.pushState(null, "", path);
  window.scrollTo(0, 0);
  show(true);
}

/** Says above the page what everybody should know: whose figures these are and what is missing of them. */
function tell(head) {
  document.getElementById("run-name").textContent = head.name;
  document.title = `${page().name} · ${head.name}`;
  const told = [...head.problems];
  if (head.step_files_left > 0) told.push(`Figures over steps are of a part: ${count(head.step_files_left)} files are still being read.`);
  if (head.left_out > 0) told.push(`${count(head.left_out)} trajectories are beyond what the table holds; figures count them.`);
  put(notices, told.map((text) => el("p", { class: "notice" }, text)));
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const href = link.getAttribute("href");
  if (!href.startsWith("/") || href.startsWith("/api/")) return;
  event.preventDefault();
  go(href);
});

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.metaKey || event.ctrlKey || event.altKey) return;
  if (event.target.closest?.("input, select, textarea, dialog")) return;
  const entry = PAGES.find(({ key }) => key === event.key);
  if (entry) {
    event.preventDefault();
    go(entry.path);
  }
});

// A link to a step of the same page is no other page.
window.addEventListener("popstate", () => {
  if (address !== location.pathname + location.search) show(true);
});

// The theme: the system's until somebody chooses; then light, dark, and the system's again.
const THEMES = ["system", "light", "dark"];
function dress(choice) {
  if (choice === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
  theme.textContent = `Theme: ${choice}`;
}
let choice = THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "system";
dress(choice);
theme.addEventListener("click", () => {
  choice = THEMES[(THEMES.indexOf(choice) + 1) % THEMES.length];
  localStorage.setItem("theme", choice);
  dress(choice);
});

hear(
  (change) => {
    const first = newest === null;
    newest = change;
    status.textContent = change.trouble ? `cannot read: ${change.trouble}` : `${count(change.trajectories)} trajectories, commit ${change.version}`;
    status.classList.toggle("bad", Boolean(change.trouble));
    if (!first) shown?.changed?.(change);
  },
  (isLost) => {
    if (isLost) status.textContent = "not connected; trying again";
    status.classList.toggle("bad", isLost);
  },
);

show(false);
