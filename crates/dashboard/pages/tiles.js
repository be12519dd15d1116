// The tiles at the top of a page: rows of equal number, the last of which fills the width.

import { el } from "./dom.js";

const PER_ROW_MAX = 5;

/** `tile`s; one that does not apply is null and takes no space. */
export function tiles(...list) {
  const known = list.filter(Boolean);
  const rows = Math.ceil(known.length / PER_ROW_MAX);
  return el("div", { class: "tiles", style: { "--per-row": Math.ceil(known.length / rows) } }, known);
}

/** `title` explains the name to who rests the pointer on it. */
export function tile(name, value, note, { kind = "", title = null } = {}) {
  return el(
    "div",
    { class: `tile ${kind}`, title },
    el("p", { class: "name" }, name),
    el("p", { class: "value" }, value),
    el("p", { class: "note" }, note),
  );
}
