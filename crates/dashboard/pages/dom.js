// Makes elements. Text from outside becomes text nodes and nothing else: there is no way from here to markup.

import { within } from "./base.js";

const SVG = "http://www.w3.org/2000/svg";

/** An element: `el("p", { class: "note" }, "text", child)`. `on` holds listeners, `style` CSS properties, everything else is an attribute. */
export function el(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for a picture. */
export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (name === "style") {
      for (const [property, text] of Object.entries(value)) node.style.setProperty(property, String(text));
    } else if (name === "href" || name === "src") {
      setAddress(node, value, name);
    } else if (name.startsWith("on")) {
      throw new Error(`${name}: listeners belong into \`on\``);
    } else {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  append(node, children);
  return node;
}

/** Only our own addresses: a page's URL is shown as text and never followed. */
export function setAddress(node, value, name = "src") {
  if (!/^[/#](?!\/)/.test(value)) throw new Error(`${name} ${value} leads elsewhere`);
  node.setAttribute(name, within(value));
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Puts these children in the place of all others. */
export function put(node, ...children) {
  node.replaceChildren();
  append(node, children);
}

const letGo = [];
let isPointerDown = false;
const release = () => {
  isPointerDown = false;
  // The click comes after it, to what was there when the button went down.
  setTimeout(() => letGo.splice(0).forEach((go) => go()), 0);
};
window.addEventListener("pointerdown", () => (isPointerDown = true), true);
for (const end of ["pointerup", "pointercancel", "blur"]) window.addEventListener(end, release, true);
// A scroll bar that is let go of may not say so.
window.addEventListener("pointermove", (event) => isPointerDown && event.buttons === 0 && release(), true);

/** Waits while a button of the pointer is down: what it went down on must still be there when it comes up. */
export function released() {
  return isPointerDown ? new Promise((go) => letGo.push(go)) : Promise.resolve();
}

/**
 * The same as `put` for what is drawn repeatedly: what the reader opened or scrolled stays so, where it has
 * an id, and the focus stays where it is.
 */
export async function redraw(node, ...children) {
  await released();
  const within = (selector) => [...node.querySelectorAll(selector)];
  const folds = within("details[open][id]").map((fold) => fold.id);
  const scrolled = within("[id]")
    .filter((part) => part.scrollTop > 0 || part.scrollLeft > 0)
    .map((part) => [part.id, part.scrollTop, part.scrollLeft]);
  const at = node.contains(document.activeElement) ? known(document.activeElement) : null;
  put(node, ...children);
  const found = (id) => (id ? document.getElementById(id) : null);
  for (const id of folds) {
    const fold = found(id);
    if (!fold) continue;
    fold.open = true;
    // What a fold makes when it opens is there before it is scrolled to.
    fold.dispatchEvent(new Event("toggle"));
  }
  for (const [id, top, left] of scrolled) found(id)?.scrollTo({ top, left, behavior: "instant" });
  if (at) node.querySelector(at)?.focus({ preventScroll: true });
}

/** A selector that finds the focused element again: by its id, or by where it leads. */
function known(part) {
  if (part.id) return `#${CSS.escape(part.id)}`;
  return part.hasAttribute("href") ? `[href="${CSS.escape(part.getAttribute("href"))}"]` : null;
}

/** Letters at the end of an id that stay whole: `g000030-s2-a0` and the sign before it. */
const TAIL = 14;

/** An id that loses its middle where its column is narrow: what tells ids of one run apart is at their end. */
export function cutMiddle(id) {
  const letters = [...id];
  return el(
    "code",
    { class: "middle", title: id },
    el("span", { class: "start" }, letters.slice(0, -TAIL).join("")),
    el("span", { class: "tail" }, letters.slice(-TAIL).join("")),
  );
}

/** An id made of words. */
export function slug(text) {
  return text.toLowerCase().replace(/[^a-z0-9]+/g, "-");
}

/** A section with a heading. */
export function card(title, props, ...children) {
  return el("section", { ...props, class: `card ${props?.class ?? ""}` }, el("h2", {}, title), ...children);
}

/** A table: columns are `{ name, of, numeric }`. */
export function table(columns, rows, caption) {
  const cell = (column, row) => el("td", { class: column.numeric ? "number" : null }, column.of(row));
  return el(
    "div",
    { class: "scroll-x", id: `table-${slug(caption)}`, tabindex: "0", role: "region", "aria-label": caption },
    el(
      "table",
      {},
      el("caption", { class: "hidden" }, caption),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          columns.map((column) =>
            el("th", { scope: "col", class: column.numeric ? "number" : null }, column.name),
          ),
        ),
      ),
      el(
        "tbody",
        {},
        rows.map((row) =>
          el(
            "tr",
            {},
            columns.map((column) => cell(column, row)),
          ),
        ),
      ),
    ),
  );
}
