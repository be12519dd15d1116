// Small parts that several pages of the code host use.

import { visit } from "/kit/address.js";
import { h, icon } from "/kit/dom.js";
import { draws } from "/kit/random.js";
import { apply, href, state } from "/kit/site.js";
import { LABELS, language } from "/world.js";

const picture = (kind, svg) => {
  const node = h("span", { class: kind, "aria-hidden": "true" });
  node.innerHTML = svg;
  return node;
};

/** Stacked beams. */
export const mark = (size) =>
  picture(
    "mark",
    `<svg width="${size}" height="${size}" viewBox="0 0 32 32"><rect x="3" y="21" width="26" height="7" rx="2" fill="#f2b134"/><rect x="6" y="13" width="20" height="6" rx="2" fill="#d98b2b"/><rect x="10" y="5" width="12" height="6" rx="2" fill="#8f5b2e"/></svg>`,
  );

/** A mosaic of somebody's name, mirrored as on a tile. */
export function avatar(user, size) {
  const draw = draws(`avatar/${user}`),
    hue = draw.below(360);
  const cells = Array.from({ length: 15 }, (_, at) => ({
    x: at % 3,
    y: Math.floor(at / 3),
    on: draw.chance(0.55),
  }))
    .filter(({ on }) => on)
    .map(({ x, y }) => `<path d="M${x} ${y}h1v1h-1zM${4 - x} ${y}h1v1h-1z"/>`)
    .join("");
  return picture(
    "avatar",
    `<svg width="${size}" height="${size}" viewBox="-0.5 -0.5 6 6"><rect x="-.5" y="-.5" width="6" height="6" rx=".8" fill="hsl(${hue} 30% 22%)"/><g fill="hsl(${hue} 70% 62%)">${cells}</g></svg>`,
  );
}

export const languageDot = (name) =>
  h(
    "span",
    { class: "language" },
    h("i", { style: { background: `hsl(${language(name).hue} 70% 55%)` } }),
    name,
  );
export const repoLink = (repo) =>
  h("a", { href: href("/repo/", { id: repo.id }) }, `${repo.owner}/`, h("b", {}, repo.name));
export const label = (name) =>
  h("span", { class: "label", style: { "--hue": LABELS.find((one) => one.name === name).hue } }, name);

/** Whether somebody is signed in; if not, the visitor is sent to do so and comes back. */
export function signedIn() {
  if (state().user) return true;
  visit(href("/login/", { next: location.pathname + location.search }));
  return false;
}

/** A button that puts a repository on one of the visitor's lists, and takes it off again. */
export function toggle(repo, list, sign, [off, on], id) {
  const node = h("button", {
    id,
    onclick: () => {
      if (signedIn()) {
        apply(`${list}.toggle`, { id: repo.id });
        draw();
      }
    },
  });
  const draw = () => {
    const is = state()[list].includes(repo.id);
    node.replaceChildren(icon(sign, 16), is ? on : off);
    node.classList.toggle("on", is);
    node.setAttribute("aria-pressed", String(is));
  };
  draw();
  return node;
}
