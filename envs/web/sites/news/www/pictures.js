// Press pictures, one scene a topic, drawn in the report's own colours.

import { h } from "/kit/dom.js";
import { draws } from "/kit/random.js";

const SCENES = {
  Transport: (d, c) =>
    `<rect y="150" width="320" height="50" fill="#6b7680"/><rect x="60" y="104" width="${166 + d.below(30)}" height="52" rx="9" fill="${c(45)}"/><path d="M72 120h142" stroke="#dff0fa" stroke-width="17" stroke-dasharray="24 9"/><circle cx="96" cy="158" r="11" fill="#222"/><circle cx="190" cy="158" r="11" fill="#222"/><path d="M0 178h320" stroke="#fff" stroke-dasharray="22 14" stroke-width="3"/>`,
  Schools: (d, c) =>
    `<rect x="60" y="74" width="200" height="100" fill="${c(70)}"/><path d="M50 76l110-48 110 48z" fill="${c(34)}"/>${[80, 120, 180, 220].map((x) => `<rect x="${x}" y="92" width="22" height="30" fill="#48627a"/>`).join("")}<rect x="148" y="126" width="26" height="48" fill="#5d4030"/><circle cx="160" cy="56" r="10" fill="#fff"/>`,
  Companies: (d, c) =>
    `${[0, 1, 2, 3, 4, 5]
      .map((i) => {
        const tall = 50 + i * 12 + d.below(26);
        return `<rect x="${34 + i * 44}" y="${172 - tall}" width="30" height="${tall}" fill="${c(38 + i * 6)}"/>`;
      })
      .join(
        "",
      )}<path d="M30 ${130 - d.below(20)}L110 104l70 8 104 -72" fill="none" stroke="#fff" stroke-width="5"/>`,
  Energy: (d) =>
    `<rect y="140" width="320" height="60" fill="#4f86a3"/>${[60, 150, 250]
      .map((x) => {
        const t = d.below(120);
        return `<path d="M${x} 70v84" stroke="#f3f5f7" stroke-width="5"/><g transform="rotate(${t} ${x} 70)" fill="#f3f5f7"><path d="M${x} 70l5 -46h-8z"/><path d="M${x} 70l42 20 -4 7z"/><path d="M${x} 70l-40 24 -3 -8z"/></g>`;
      })
      .join("")}`,
  Space: (d, c) =>
    `<rect width="320" height="200" fill="#101a33"/>${Array.from({ length: 40 }, () => `<circle cx="${d.below(320)}" cy="${d.below(200)}" r="${d.decimal(0.4, 1.6)}" fill="#fff"/>`).join("")}<circle cx="250" cy="${60 + d.below(40)}" r="44" fill="${c(58)}"/><path d="M92 150l20 -84q12 -30 24 0l20 84z" fill="#e9edf2"/><circle cx="124" cy="92" r="9" fill="${c(40)}"/><path d="M110 150h28l-14 34z" fill="#f5a524"/>`,
  Nature: () =>
    `<path d="M0 120q80 -60 160 -10t160 -20v110H0z" fill="#6f9d63"/><path d="M0 160q90 -30 170 0t150 -8v48H0z" fill="#5aa0bd"/>${[30, 70, 250, 285].map((x) => `<path d="M${x} 132l18 -60 18 60z" fill="#3f6b45"/>`).join("")}<ellipse cx="160" cy="150" rx="30" ry="13" fill="#6b4d36"/><circle cx="188" cy="141" r="10" fill="#6b4d36"/>`,
  Football: (d, c) =>
    `<rect y="80" width="320" height="120" fill="#4c9a50"/>${[0, 2, 4, 6].map((i) => `<rect x="${i * 46}" y="80" width="46" height="120" fill="#56a85a"/>`).join("")}<rect y="40" width="320" height="44" fill="#54606c"/><rect x="110" y="66" width="100" height="56" fill="none" stroke="#fff" stroke-width="5"/><circle cx="${130 + d.below(80)}" cy="156" r="12" fill="#fff" stroke="#222" stroke-width="3"/><circle cx="90" cy="118" r="8" fill="#e8bf98"/><rect x="82" y="127" width="16" height="32" rx="5" fill="${c(42)}"/>`,
  Running: (d, c) =>
    `<path d="M0 200L120 80h80l120 120z" fill="#7b848c"/>${[110, 160, 205].map((x, i) => `<circle cx="${x}" cy="${98 + i * 7}" r="9" fill="#d9a679"/><rect x="${x - 9}" y="${108 + i * 7}" width="18" height="28" rx="6" fill="${c(35 + i * 14)}"/><path d="M${x - 5} ${136 + i * 7}l-6 22M${x + 5} ${136 + i * 7}l8 20" stroke="#333" stroke-width="5"/>`).join("")}<rect x="60" y="36" width="200" height="22" fill="${c(40)}"/>`,
  Museums: (d, c) =>
    `<rect width="320" height="200" fill="#ece6da"/><rect y="158" width="320" height="42" fill="#a98a66"/>${[36, 122, 214].map((x, i) => `<rect x="${x}" y="${44 + i * 4}" width="72" height="84" fill="#7b5b34"/><rect x="${x + 7}" y="${51 + i * 4}" width="58" height="70" fill="${c(40 + i * 15)}"/><circle cx="${x + 20 + d.below(28)}" cy="${82 + i * 4}" r="13" fill="${c(78)}"/>`).join("")}`,
  Film: (d, c) =>
    `<rect width="320" height="200" fill="#231f2b"/><rect x="50" y="30" width="220" height="112" fill="${c(72)}"/><path d="M50 142l76 -70 52 40 36 -26 56 56z" fill="${c(38)}"/>${Array.from({ length: 9 }, (_, i) => `<circle cx="${20 + i * 35}" cy="186" r="14" fill="#0f0d14"/>`).join("")}`,
  Elections: (d, c) =>
    `<rect width="320" height="200" fill="${c(86)}"/><rect x="104" y="84" width="112" height="92" fill="${c(40)}"/><rect x="128" y="92" width="64" height="7" fill="#111"/><rect x="136" y="36" width="48" height="60" fill="#fff"/><path d="M146 60l9 10 18 -22" fill="none" stroke="${c(35)}" stroke-width="6"/>`,
  Trade: (d, c) =>
    `<rect y="138" width="320" height="62" fill="#4f86a3"/><path d="M40 128h240l-24 40H66z" fill="#3a4651"/>${[0, 1, 2, 3, 4].flatMap((x) => [0, 1].map((y) => `<rect x="${82 + x * 33}" y="${80 + y * 24}" width="30" height="22" fill="${c(36 + ((x * 3 + y * 5) % 5) * 9)}"/>`)).join("")}<rect x="52" y="88" width="24" height="42" fill="#e6eaee"/>`,
};

/** The picture of a report. */
export function photo(article, large = false) {
  const draw = draws(`photo/${article.id}`),
    colour = (light) => `hsl(${article.hue} 42% ${light}%)`;
  const node = h("figure", {
    class: `photo${large ? " large" : ""}`,
    role: "img",
    "aria-label": article.topic,
  });
  node.innerHTML = `<svg viewBox="0 0 320 200" preserveAspectRatio="xMidYMid slice"><rect width="320" height="200" fill="hsl(${(article.hue + 180) % 360} 38% 84%)"/>${SCENES[article.topic](draw, colour)}</svg>`;
  return node;
}
