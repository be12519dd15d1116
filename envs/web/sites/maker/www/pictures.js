// Devices drawn from their line, size and colour.

import { h } from "/kit/dom.js";
import { draws } from "/kit/random.js";
import { COLOURS } from "/world.js";

const screen = (hue, x, y, w, tall, r) =>
  `<rect x="${x}" y="${y}" width="${w}" height="${tall}" rx="${r}" fill="hsl(${hue} 60% 18%)"/><circle cx="${x + w * 0.3}" cy="${y + tall * 0.35}" r="${Math.min(w, tall) * 0.42}" fill="hsl(${hue} 70% 52%)" opacity=".75"/><circle cx="${x + w * 0.75}" cy="${y + tall * 0.7}" r="${Math.min(w, tall) * 0.36}" fill="hsl(${(hue + 60) % 360} 75% 60%)" opacity=".7"/>`;
const clip = (id, shape, inner) =>
  `<clipPath id="${id}">${shape}</clipPath><g clip-path="url(#${id})">${inner}</g>`;

/** A device in a colour, the first it comes in if none is named. */
export function device(product, colour = product.colours?.[0] ?? product.colour) {
  const body = COLOURS[colour] ?? "#888",
    hue = draws(`screen/${product.id}`).below(360),
    node = h("div", { class: "device", role: "img", "aria-label": `${product.name}, ${colour}` }),
    id = `s-${product.id}-${colour}`;
  const kinds = {
    phones: () =>
      `<rect x="74" y="18" width="92" height="184" rx="18" fill="${body}"/>${clip(id, '<rect x="80" y="24" width="80" height="172" rx="13"/>', screen(hue, 80, 24, 80, 172, 13))}<rect x="108" y="31" width="24" height="7" rx="3.500" fill="#000"/>`,
    laptops: () =>
      `<rect x="42" y="42" width="156" height="106" rx="8" fill="${body}"/>${clip(id, '<rect x="48" y="48" width="144" height="92" rx="3"/>', screen(hue, 48, 48, 144, 92, 3))}<path d="M18 150h204l10 18a6 6 0 0 1-5 8H13a6 6 0 0 1-5-8z" fill="${body}"/><path d="M98 152h44l3 7h-50z" fill="#000" opacity=".2"/>`,
    tablets: () =>
      `<rect x="36" y="36" width="168" height="148" rx="14" fill="${body}"/>${clip(id, '<rect x="45" y="45" width="150" height="130" rx="6"/>', screen(hue, 45, 45, 150, 130, 6))}`,
    watches: () =>
      `<path d="M90 8h60l6 60H84zM84 152h72l-6 60H90z" fill="${body}" opacity=".7"/><rect x="66" y="58" width="108" height="104" rx="32" fill="${body}"/>${clip(id, '<rect x="74" y="66" width="92" height="88" rx="25"/>', screen(hue, 74, 66, 92, 88, 25))}<path d="M120 84v28l18 12" stroke="#fff" stroke-width="5" fill="none" stroke-linecap="round"/>`,
    audio: () =>
      /Buds|Dot/.test(product.name)
        ? `<path d="M66 80a30 30 0 1 1 54 18l-8 74h-20l-6-64a30 30 0 0 1-20-28z" fill="${body}"/><path d="M134 88a28 28 0 1 1 42 24l-8 62h-18l-4-58a28 28 0 0 1-12-28z" fill="${body}" opacity=".8"/>`
        : /Over/.test(product.name)
          ? `<path d="M52 128a68 68 0 0 1 136 0" fill="none" stroke="${body}" stroke-width="14"/><rect x="36" y="116" width="42" height="74" rx="20" fill="${body}"/><rect x="162" y="116" width="42" height="74" rx="20" fill="${body}"/>`
          : `<rect x="52" y="44" width="136" height="140" rx="46" fill="${body}"/><circle cx="120" cy="130" r="36" fill="#000" opacity=".25"/><circle cx="120" cy="72" r="12" fill="#000" opacity=".25"/>`,
  };
  const kits = {
    Case: `<rect x="70" y="24" width="100" height="176" rx="20" fill="none" stroke="${body}" stroke-width="14"/>`,
    Charger: `<rect x="76" y="70" width="88" height="88" rx="18" fill="${body}"/><path d="M100 70V44M140 70V44" stroke="#555" stroke-width="10"/>`,
    Cable: `<path d="M50 160q0-100 70-60t70-50" fill="none" stroke="${body}" stroke-width="12"/><rect x="40" y="150" width="22" height="44" rx="6" fill="#555"/><rect x="180" y="20" width="22" height="40" rx="6" fill="#555"/>`,
    Stand: `<path d="M60 180h120l-30-110h-24l-10 60h-40z" fill="${body}"/>`,
    "Screen glass": `<rect x="70" y="30" width="100" height="160" rx="12" fill="#dbe9f2" stroke="${body}" stroke-width="5"/><path d="M90 60l60 90" stroke="#fff" stroke-width="14"/>`,
    Sleeve: `<rect x="36" y="60" width="168" height="110" rx="14" fill="${body}"/><path d="M36 84h168" stroke="#fff" opacity=".5" stroke-width="3"/>`,
  };
  node.innerHTML = `<svg viewBox="0 0 240 220">${product.kit ? kits[product.kit] : kinds[product.line]()}</svg>`;
  return node;
}
