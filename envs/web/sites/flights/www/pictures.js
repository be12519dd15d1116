// Pictures: the mark, the sky over the search, a view of each city.

import { h } from "/kit/dom.js";
import { draws } from "/kit/random.js";

const picture = (kind, label, svg) => {
  const node = h("span", { class: kind, role: "img", "aria-label": label });
  node.innerHTML = svg;
  return node;
};

export const mark = () =>
  picture(
    "mark",
    "Wingfare",
    '<svg width="34" height="34" viewBox="0 0 34 34"><circle cx="17" cy="17" r="17" fill="#ff6b4a"/><path d="M6 20L27 9l-6 17l-5-7z" fill="#fff"/><path d="M16 19l11-10l-8 13z" fill="#ffd2c7"/></svg>',
  );

/** Clouds at sunrise with an aeroplane. */
export function sunrise() {
  const cloud = (x, y, size, fill) =>
    `<g transform="translate(${x} ${y}) scale(${size})" fill="${fill}"><circle cx="0" cy="0" r="40"/><circle cx="46" cy="-14" r="52"/><circle cx="104" cy="0" r="42"/><rect x="-40" y="0" width="186" height="42" rx="20"/></g>`;
  return picture(
    "sunrise",
    "Sky at sunrise",
    `<svg viewBox="0 0 1280 420" preserveAspectRatio="xMidYMid slice"><defs><linearGradient id="dawn" x1="0" y1="0" x2="0" y2="1"><stop offset="0" stop-color="#1b2a5c"/><stop offset=".45" stop-color="#5b4b94"/><stop offset=".78" stop-color="#f08a6c"/><stop offset="1" stop-color="#ffd3a1"/></linearGradient></defs><rect width="1280" height="420" fill="url(#dawn)"/><circle cx="950" cy="330" r="86" fill="#ffe9bd" opacity=".9"/>${cloud(60, 330, 1.1, "#fff3e6")}${cloud(420, 390, 1.5, "#ffe2cf")}${cloud(860, 400, 1.3, "#fff3e6")}${cloud(1130, 330, 1, "#ffd9c4")}<g transform="translate(860 130) rotate(-12)"><rect x="-80" y="-9" width="170" height="20" rx="10" fill="#fff"/><path d="M10 0L-34 58h20L44 4zM6 0l-34-46h14L36-2z" fill="#dfe4f2"/><path d="M-74 0l-24-34h16l28 30z" fill="#ff6b4a"/><path d="M-1200 24L-90 4" stroke="#fff" stroke-width="3" opacity=".5"/></g></svg>`,
  );
}

/** A city by the colours of its country. */
export function vista(city) {
  const draw = draws(`vista/${city.code}`),
    hue = draw.below(360);
  const towers = Array.from({ length: 10 }, (_, at) => {
    const tall = 24 + draw.below(70);
    return `<rect x="${at * 32}" y="${150 - tall}" width="${24 + draw.below(10)}" height="${tall + 20}" fill="hsl(${hue} 32% ${26 + draw.below(26)}%)"/>`;
  }).join("");
  const top = draw.one([
    "M150 64l12-34l12 34v90h-24z",
    "M120 84q40-54 80 0v70h-80z",
    "M140 90h48v64h-48zM134 90l30-26l30 26z",
  ]);
  return picture(
    "vista",
    city.name,
    `<svg viewBox="0 0 320 170" preserveAspectRatio="xMidYMid slice"><rect width="320" height="170" fill="hsl(${(hue + 200) % 360} 58% 78%)"/><circle cx="${60 + draw.below(200)}" cy="48" r="24" fill="#fff" opacity=".75"/><path d="M0 128q80-${30 + draw.below(30)} 160-6t160-10v70H0z" fill="hsl(${(hue + 120) % 360} 28% 60%)"/>${towers}<path d="${top}" fill="hsl(${hue} 42% 22%)"/></svg>`,
  );
}
