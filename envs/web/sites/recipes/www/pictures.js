// Dishes seen from above, drawn from what is in them.

import { h } from "/kit/dom.js";
import { draws } from "/kit/random.js";
import { food } from "/world.js";

const GROUNDS = ["#e9dfd0", "#d9e2dc", "#e6d3c6", "#d3dbe3", "#efe6c8", "#e0d4de"];

/** A picture of a recipe; the large one fills its frame. */
export function plate(recipe, large = false) {
  const draw = draws(`plate/${recipe.id}`);
  const colours = recipe.ingredients.map(({ key }) => food(key).colour);
  const bowl = /Soups|Breakfast|Salads|Pasta/.test(recipe.course),
    baked = /Baking|Desserts/.test(recipe.course);
  const rim = draw.one(["#fffdf8", "#f6f2ea", "#33424e", "#2f5d5a", "#b65c3a"]);
  const parts = [];
  for (let at = 0; at < (baked ? 26 : 46); at++) {
    const angle = draw.number() * Math.PI * 2,
      far = Math.sqrt(draw.number()) * 66,
      size = 4 + draw.number() * (baked ? 8 : 11);
    const [x, y] = [160 + Math.cos(angle) * far, 110 + Math.sin(angle) * far];
    const colour = draw.one(colours),
      turn = draw.below(180);
    parts.push(
      draw.one([
        `<ellipse cx="${x}" cy="${y}" rx="${size}" ry="${size * 0.65}" fill="${colour}" transform="rotate(${turn} ${x} ${y})"/>`,
        `<rect x="${x - size}" y="${y - size * 0.5}" width="${size * 1.7}" height="${size}" rx="${size * 0.35}" fill="${colour}" transform="rotate(${turn} ${x} ${y})"/>`,
        `<path d="M${x - size} ${y}q${size} ${-size * 1.3} ${size * 2} 0q${-size} ${size * 1.3} ${-size * 2} 0z" fill="${colour}" transform="rotate(${turn} ${x} ${y})"/>`,
      ]),
    );
  }
  const leaves = baked
    ? ""
    : Array.from({ length: 7 }, () => {
        const x = 108 + draw.below(104),
          y = 62 + draw.below(96);
        return `<path d="M${x} ${y}q7 -9 14 0q-7 9 -14 0z" fill="#4c7d3a" transform="rotate(${draw.below(180)} ${x} ${y})"/>`;
      }).join("");
  const base = baked
    ? `<circle cx="160" cy="110" r="76" fill="#c8904e"/><circle cx="160" cy="110" r="68" fill="#e2b474"/>`
    : `<circle cx="160" cy="110" r="74" fill="${bowl ? colours[1] : "#faf6ec"}"/>`;
  const node = h("div", { class: `plate${large ? " large" : ""}`, role: "img", "aria-label": recipe.title });
  node.innerHTML = `<svg viewBox="0 0 320 220" preserveAspectRatio="xMidYMid slice"><rect width="320" height="220" fill="${draw.one(GROUNDS)}"/><path d="M0 ${150 + draw.below(40)}L320 ${120 + draw.below(60)}V220H0z" fill="#fff" opacity=".35"/><ellipse cx="166" cy="122" rx="100" ry="94" fill="#000" opacity=".13"/><circle cx="160" cy="110" r="94" fill="${rim}"/><circle cx="160" cy="110" r="82" fill="#000" opacity=".06"/>${base}${parts.join("")}${leaves}<path d="M282 40v140" stroke="#9aa2a9" stroke-width="7" stroke-linecap="round"/><ellipse cx="282" cy="44" rx="11" ry="20" fill="#9aa2a9"/></svg>`;
  return node;
}
