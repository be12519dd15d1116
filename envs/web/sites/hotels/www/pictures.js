// Pictures of places and a map of a city, drawn from their data.

import { h } from "/kit/dom.js";
import { draws } from "/kit/random.js";

/** A house in its street; views 1 and 2 are rooms. */
export function view(hotel, which = 0) {
  const draw = draws(`view/${hotel.id}/${which}`),
    node = h("div", { class: "view", role: "img", "aria-label": hotel.name ?? hotel.id });
  const tone = (light, shift = 0) => `hsl(${(hotel.hue + shift) % 360} 34% ${light}%)`;
  node.innerHTML = `<svg viewBox="0 0 320 220" preserveAspectRatio="xMidYMid slice">${which === 2 ? terrace(draw, tone) : which ? room(draw, tone) : hotel.kind === "City" ? skyline(draw, tone) : house(draw, tone)}</svg>`;
  return node;
}

function sky(draw) {
  const [top, low] = draw.one([
    ["#8ec5e8", "#dcedf5"],
    ["#f3b98a", "#fbe6cf"],
    ["#7fa6d6", "#e7d8e6"],
    ["#a9d3cf", "#eef5ec"],
  ]);
  return `<defs><linearGradient id="s${top.slice(1)}" x1="0" y1="0" x2="0" y2="1"><stop offset="0" stop-color="${top}"/><stop offset="1" stop-color="${low}"/></linearGradient></defs><rect width="320" height="220" fill="url(#s${top.slice(1)})"/><circle cx="${60 + draw.below(200)}" cy="${34 + draw.below(24)}" r="17" fill="#fff" opacity=".7"/>`;
}

function house(draw, tone) {
  const floors = draw.between(3, 6),
    columns = draw.between(4, 7),
    width = 30 * columns + 20,
    height = 26 * floors + 30,
    x = 160 - width / 2,
    y = 196 - height;
  const windows = Array.from(
    { length: floors * columns },
    (_, index) =>
      `<rect x="${x + 16 + (index % columns) * 30}" y="${y + 14 + Math.floor(index / columns) * 26}" width="18" height="17" rx="1" fill="${draw.chance(0.3) ? "#ffe6a3" : "#41566b"}"/>`,
  ).join("");
  const roof = draw.one([
    `<path d="M${x - 8} ${y}L160 ${y - 34}L${x + width + 8} ${y}z" fill="${tone(30, 20)}"/>`,
    `<rect x="${x - 6}" y="${y - 10}" width="${width + 12}" height="12" fill="${tone(34, 20)}"/>`,
    `<path d="M${x} ${y}q${width / 2} -50 ${width} 0z" fill="${tone(34, 20)}"/>`,
  ]);
  const trees = [24, 292, 58]
    .map(
      (at) =>
        `<circle cx="${at}" cy="${168 + draw.below(12)}" r="${15 + draw.below(9)}" fill="#5d8a57"/><rect x="${at - 2}" y="178" width="4" height="22" fill="#6c5238"/>`,
    )
    .join("");
  return `${sky(draw)}<path d="M0 150q80 -${20 + draw.below(40)} 160 0t160 -10v80H0z" fill="${tone(72, 120)}"/>${roof}<rect x="${x}" y="${y}" width="${width}" height="${height}" fill="${tone(78)}"/>${windows}<rect x="150" y="170" width="20" height="26" fill="${tone(26)}"/><rect x="140" y="164" width="40" height="6" fill="${tone(42)}"/>${trees}<rect y="196" width="320" height="24" fill="#b9b3a6"/>`;
}

function skyline(draw, tone) {
  const towers = Array.from({ length: 13 }, (_, index) => {
    const tall = 40 + draw.below(90);
    return `<rect x="${index * 26 - 8}" y="${190 - tall}" width="${22 + draw.below(12)}" height="${tall + 30}" fill="${tone(38 + draw.below(34))}"/>`;
  }).join("");
  return `${sky(draw)}<path d="M150 70l10 -30l10 30v120h-20z" fill="${tone(30)}"/>${towers}<rect y="192" width="320" height="28" fill="#6f9ab5"/><path d="M0 200h320M20 208h280" stroke="#fff" opacity=".4"/>`;
}

function room(draw, tone) {
  return `<rect width="320" height="150" fill="${tone(88)}"/><rect y="150" width="320" height="70" fill="#b58f68"/><rect x="204" y="26" width="84" height="84" fill="#cfe5f1"/><path d="M246 26v84M204 68h84" stroke="#fff" stroke-width="5"/><rect x="194" y="20" width="14" height="104" fill="${tone(62, 30)}"/><rect x="284" y="20" width="14" height="104" fill="${tone(62, 30)}"/><rect x="24" y="86" width="14" height="96" rx="4" fill="#6d4e36"/><rect x="24" y="126" width="150" height="46" rx="6" fill="#fff"/><rect x="70" y="122" width="106" height="50" rx="6" fill="${tone(52)}"/><rect x="38" y="112" width="40" height="22" rx="8" fill="#f4f4f2"/><circle cx="${100 + draw.below(60)}" cy="52" r="20" fill="${tone(66, 40)}"/><rect x="180" y="136" width="26" height="36" fill="#7c5a3f"/><path d="M184 136l6 -24h8l6 24z" fill="#f6e3a8"/>`;
}

function terrace(draw, tone) {
  return `${sky(draw)}<path d="M0 118h320v40H0z" fill="#6fa3c0"/><path d="M0 ${112 + draw.below(6)}q70 -26 150 0t170 -8v16H0z" fill="${tone(50, 120)}"/><path d="M0 158h320v62H0z" fill="#c9a983"/><path d="M0 150h320M20 150v34M70 150v34M120 150v34M170 150v34M220 150v34M270 150v34" stroke="#fff" stroke-width="5"/><ellipse cx="160" cy="186" rx="44" ry="9" fill="#fff"/><path d="M160 190v26" stroke="#888" stroke-width="6"/><rect x="78" y="168" width="36" height="40" rx="6" fill="${tone(56)}"/><rect x="208" y="168" width="36" height="40" rx="6" fill="${tone(56)}"/><path d="M160 60q-70 8 -84 44h168q-14 -36 -84 -44z" fill="${tone(64, 40)}"/><path d="M160 60v124" stroke="#8a7a66" stroke-width="4"/>`;
}

/** A map of a city with pins: [{ x, y (per cent), text, label, act }]. */
export function cityMap(pins, width, height) {
  const node = h("div", { class: "map", style: { width: `${width}px`, height: `${height}px` } });
  const streets = [12, 27, 41, 58, 73, 88]
    .map((at) => `<path d="M${at} 0L${at + 4} 100M0 ${at}L100 ${at - 5}" stroke="#fff" stroke-width="1.4"/>`)
    .join("");
  node.innerHTML = `<svg viewBox="0 0 100 100" preserveAspectRatio="none"><rect width="100" height="100" fill="#ebe7df"/><rect x="14" y="12" width="12" height="13" fill="#cfe3c2"/><rect x="60" y="60" width="12" height="11" fill="#cfe3c2"/>${streets}<path d="M0 72q30 -14 52 4t48 -10v14q-26 14 -48 2t-52 6z" fill="#a9cfe4"/><circle cx="50" cy="46" r="2" fill="#444"/></svg>`;
  for (const { x, y, text, label, act } of pins)
    node.append(
      h(
        "button",
        { class: "pin", "aria-label": label, style: { left: `${x}%`, top: `${y}%` }, onclick: act },
        text,
      ),
    );
  return node;
}
