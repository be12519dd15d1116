// Elements, icons and texts: what every page is made of.

import { checkAttribute } from "/kit/address.js";

/** An element: `h("p", { class: "soft" }, "text", child)`. Attributes starting with `on` are listeners; null, false and undefined children are left out. */
export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  dress(node, attributes);
  return add(node, ...children);
}

/** Appends children, leaving out null, false and undefined. */
export function add(node, ...children) {
  node.append(...present(children));
  return node;
}

const present = (children) =>
  children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);

function dress(node, attributes) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "html") node.innerHTML = value;
    else if (name === "style" && typeof value === "object")
      for (const [key, style] of Object.entries(value)) node.style.setProperty(key, style);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) {
      checkAttribute(name, value);
      node.setAttribute(name, value);
    }
  }
}

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

/** Empties a node and fills it anew. */
export function fill(node, ...children) {
  node.replaceChildren(...present(children));
  return node;
}

/** The text a person would say a field holds. */
export const tidy = (text) => text.trim().replace(/\s+/g, " ");

/** Whole numbers as people write them: 1,234. */
export const grouped = (number) => String(number).replace(/\B(?=(\d{3})+(?!\d))/g, ",");

/** Cents as dollars: $1,234.50. */
export const dollars = (cents) =>
  `${cents < 0 ? "-" : ""}$${grouped(Math.floor(Math.abs(cents) / 100))}.${String(Math.abs(cents) % 100).padStart(2, "0")}`;

/** "one thing", "2 things". */
export const count = (number, noun, plural = `${noun}s`) =>
  `${grouped(number)} ${number === 1 ? noun : plural}`;

/** "a-b-c" of "A b, C!": for addresses. */
export const slug = (text) =>
  text
    .toLowerCase()
    .normalize("NFD")
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-|-$/g, "");

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

const ICONS = {
  search: '<circle cx="10.5" cy="10.5" r="6.5"/><path d="m15.5 15.5 5.5 5.5"/>',
  cart: '<path d="M2.5 4h3l2.6 11.5h10.4L21 7.5H6.3"/><circle cx="9.5" cy="19.5" r="1.5"/><circle cx="17" cy="19.5" r="1.5"/>',
  user: '<circle cx="12" cy="8" r="4"/><path d="M4 21c.6-4.4 3.8-6.5 8-6.5s7.4 2.1 8 6.5"/>',
  heart:
    '<path d="M12 20.5C5 15.5 3 12 3 8.8A4.8 4.8 0 0 1 12 6.5a4.8 4.8 0 0 1 9 2.3c0 3.2-2 6.7-9 11.7z"/>',
  truck:
    '<path d="M2 6h12v10H2zM14 9.5h4l3.5 3.5v3H14z"/><circle cx="6.5" cy="17.5" r="2"/><circle cx="17.5" cy="17.5" r="2"/>',
  back: '<path d="m14.5 5-7 7 7 7"/>',
  next: '<path d="m9.5 5 7 7-7 7"/>',
  down: '<path d="m6 9.5 6 6 6-6"/>',
  close: '<path d="M5.5 5.5l13 13M18.5 5.5l-13 13"/>',
  check: '<path d="m4.5 12.5 5 5 10-11"/>',
  menu: '<path d="M3.5 6.5h17M3.5 12h17M3.5 17.5h17"/>',
  calendar: '<rect x="3.5" y="5" width="17" height="16" rx="2"/><path d="M3.5 10h17M8 2.5V7M16 2.5V7"/>',
  clock: '<circle cx="12" cy="12" r="9"/><path d="M12 6.5V12l4 2.5"/>',
  pin: '<path d="M12 21.5c-5-6-7-9.2-7-12a7 7 0 0 1 14 0c0 2.8-2 6-7 12z"/><circle cx="12" cy="9.5" r="2.5"/>',
  download: '<path d="M12 3.5v12m-5-5 5 5 5-5M4 20.5h16"/>',
  share:
    '<circle cx="6" cy="12" r="2.5"/><circle cx="17.5" cy="5.5" r="2.5"/><circle cx="17.5" cy="18.5" r="2.5"/><path d="m8.3 10.8 7-4M8.3 13.2l7 4"/>',
  print: '<path d="M6.5 8.5V3h11v5.5M6.5 17.5H3.5v-9h17v9h-3M6.5 14h11v7h-11z"/>',
  speaker: '<path d="M4 9.5h4l5-4.5v14l-5-4.5H4zM16 8.5a5 5 0 0 1 0 7M18.5 6a8.5 8.5 0 0 1 0 12"/>',
  book: '<path d="M4 4.5h6.5a2 2 0 0 1 1.5 1 2 2 0 0 1 1.5-1H20v14h-6.5a2 2 0 0 0-1.5 1 2 2 0 0 0-1.5-1H4zM12 5.5v14"/>',
  flame:
    '<path d="M12 21.5a6.5 6.5 0 0 1-6.5-6.5c0-4 3.5-6 4-11 3.5 2 4.5 5 4 7.5 1-.5 1.8-1.5 2-3 2 2 3 4 3 6.5a6.5 6.5 0 0 1-6.5 6.5z"/>',
  people:
    '<circle cx="9" cy="8" r="3.5"/><path d="M2.5 20c.5-4 3-6 6.5-6s6 2 6.5 6"/><path d="M15.5 4.8a3.5 3.5 0 0 1 0 6.4M18 14.5c2 .8 3.2 2.6 3.5 5.5"/>',
  plus: '<path d="M12 4.5v15M4.5 12h15"/>',
  minus: '<path d="M4.5 12h15"/>',
  trash: '<path d="M4 6.5h16M9 6V3.5h6V6M6 6.5l1 14h10l1-14M10 10.5v6M14 10.5v6"/>',
  filter: '<path d="M3.5 5h17l-6.5 8v6l-4 2v-8z"/>',
  globe: '<circle cx="12" cy="12" r="9"/><path d="M3 12h18M12 3c5 5.5 5 12.5 0 18M12 3c-5 5.5-5 12.5 0 18"/>',
  star: '<path d="m12 3 2.7 6 6.5.7-4.9 4.4 1.4 6.4-5.7-3.3-5.7 3.3 1.4-6.4-4.9-4.4 6.5-.7z"/>',
  bookmark: '<path d="M6 3.5h12v17.5l-6-4.5-6 4.5z"/>',
  info: '<circle cx="12" cy="12" r="9"/><path d="M12 11v6M12 7.5v.5"/>',
  lock: '<rect x="5" y="10.5" width="14" height="10" rx="2"/><path d="M8 10.5V8a4 4 0 0 1 8 0v2.5"/>',
  wifi: '<path d="M3 9.5a13 13 0 0 1 18 0M6 13a8.5 8.5 0 0 1 12 0M9 16.5a4.2 4.2 0 0 1 6 0"/><circle cx="12" cy="19.5" r=".6"/>',
  bed: '<path d="M3 20v-14M3 16.5h18V20M21 16.5V12.5a2 2 0 0 0-2-2H11v6"/><circle cx="7" cy="12.5" r="2"/>',
  folder: '<path d="M3 6h6.500l2 2.500H21V19H3z"/>',
  file: '<path d="M6 3h8l4.500 4.500V21H6zM14 3v4.500h4.500"/>',
  fork: '<circle cx="6.500" cy="5" r="2.500"/><circle cx="17.500" cy="5" r="2.500"/><circle cx="12" cy="19" r="2.500"/><path d="M6.500 7.500V9a3 3 0 0 0 3 3h5a3 3 0 0 0 3-3V7.500M12 12v4.500"/>',
  phone: '<rect x="7" y="2.500" width="10" height="19" rx="2"/><path d="M11 18.500h2"/>',
  walk: '<circle cx="13" cy="4.500" r="2"/><path d="M9 21l2.500-6.500-2-3 1.500-4 3 2.500 3.500 1M11.500 14.500l3 2.500.5 4.500M7 12.500l2-4 3-1"/>',
  car: '<path d="M3 16.500v-4l2.500-6h13l2.500 6v4zM3 12.500h18M5 16.500V19h2.500v-2.500M16.500 16.500V19H19v-2.500"/>',
  route:
    '<circle cx="6" cy="18.500" r="2.500"/><circle cx="18" cy="5.500" r="2.500"/><path d="M8.500 18.500H15a3.500 3.500 0 0 0 0-7H9a3 3 0 0 1 0-6h6.500"/>',
  leaf: '<path d="M5 19C3.5 9 10 4.5 20 4.5 20 14.5 15 20.5 7 17.5M4 21c2-5 5-8 9-10"/>',
};

/** A line icon, 24 units square, in the colour of the text around it. */
export function icon(name, size = 20) {
  const span = h("span", { class: "icon", "aria-hidden": "true" });
  span.innerHTML = `<svg width="${size}" height="${size}" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round">${ICONS[name]}</svg>`;
  return span;
}

/** Five stars, filled to a rating between 0 and 5. */
export function stars(rating, size = 16) {
  const node = h("span", {
    class: "stars",
    role: "img",
    "aria-label": `${rating} out of 5 stars`,
    style: { "--share": `${(rating / 5) * 100}%`, "font-size": `${size}px` },
  });
  node.innerHTML = "<i>★★★★★</i><b>★★★★★</b>";
  return node;
}
