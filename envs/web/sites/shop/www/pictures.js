// Pictures of products, drawn from what they are: department, colour, and small differences by code.

import { h } from "/kit/dom.js";
import { colourOf } from "/world.js";

const DRAWN = {
  headphones: (c, n) =>
    `<path d="M48 118V96a52 52 0 0 1 104 0v22" fill="none" stroke="${shade(c, -30)}" stroke-width="${10 + n}" stroke-linecap="round"/><rect x="34" y="108" width="34" height="58" rx="15" fill="${c}"/><rect x="132" y="108" width="34" height="58" rx="15" fill="${c}"/><rect x="58" y="112" width="14" height="50" rx="7" fill="${shade(c, -45)}"/><rect x="128" y="112" width="14" height="50" rx="7" fill="${shade(c, -45)}"/>`,
  speakers: (c, n) =>
    `<rect x="${58 - n * 3}" y="36" width="${84 + n * 6}" height="134" rx="18" fill="${c}"/><circle cx="100" cy="76" r="20" fill="${shade(c, -50)}"/><circle cx="100" cy="76" r="9" fill="${shade(c, -15)}"/><circle cx="100" cy="128" r="30" fill="${shade(c, -50)}"/><circle cx="100" cy="128" r="14" fill="${shade(c, -15)}"/>`,
  monitors: (c, n) =>
    `<rect x="22" y="${46 + n}" width="156" height="94" rx="5" fill="#20252b"/><rect x="27" y="${51 + n}" width="146" height="82" fill="${shade(c, 25)}"/><path d="M27 ${133 + n}l48-44 34 26 28-36 36 40v14z" fill="${c}" opacity=".75"/><path d="M88 ${140 + n}h24l4 24H84z" fill="#454c54"/><rect x="66" y="${162 + n}" width="68" height="7" rx="3" fill="#454c54"/>`,
  keyboards: (c, n) =>
    `<rect x="16" y="76" width="168" height="66" rx="9" fill="${c}"/>${[0, 1, 2, 3].map((row) => [...Array(12 - (row === 3 ? 6 : 0)).keys()].map((key) => `<rect x="${24 + key * 12.9 + (row === 3 && key > 2 ? 62 : 0) + (row === 3 ? key * 2 : 0)}" y="${83 + row * 13.4}" width="${row === 3 && key === 2 ? 66 : 10.4}" height="10.6" rx="2.2" fill="${shade(c, key === n ? -70 : 34)}"/>`).join("")).join("")}`,
  watches: (c, n) =>
    `<path d="M76 66l5-44h38l5 44zM76 134l5 44h38l5-44z" fill="${c}"/><rect x="${64 - n}" y="58" width="${72 + 2 * n}" height="84" rx="${18 + n * 4}" fill="#2a2f36"/><rect x="71" y="65" width="58" height="70" rx="13" fill="#0d1013"/><text x="100" y="99" fill="#fff" font-family="Liberation Sans" font-size="20" font-weight="bold" text-anchor="middle">10:${20 + n}</text><path d="M82 116h36" stroke="${shade(c, 40)}" stroke-width="5" stroke-linecap="round"/>`,
  cameras: (c, n) =>
    `<rect x="26" y="66" width="148" height="92" rx="12" fill="#2b3036"/><path d="M70 66l8-18h44l8 18z" fill="#3a4047"/><rect x="26" y="86" width="148" height="46" fill="${c}"/><circle cx="100" cy="110" r="${34 + n}" fill="#191c20"/><circle cx="100" cy="110" r="23" fill="#39454f"/><circle cx="100" cy="110" r="12" fill="#0f1317"/><circle cx="92" cy="102" r="5" fill="#a9c3d6"/><rect x="142" y="56" width="20" height="10" rx="3" fill="#565d66"/>`,
  backpacks: (c, n) =>
    `<path d="M78 44a22 22 0 0 1 44 0" fill="none" stroke="${shade(c, -45)}" stroke-width="7"/><path d="M50 86c0-30 20-44 50-44s50 14 50 44v84H50z" fill="${c}"/><rect x="62" y="${112 + n}" width="76" height="48" rx="9" fill="${shade(c, -22)}"/><path d="M62 ${126 + n}h76" stroke="${shade(c, -60)}" stroke-width="3"/><path d="M70 74h60" stroke="${shade(c, -60)}" stroke-width="4"/><rect x="36" y="106" width="16" height="56" rx="8" fill="${shade(c, -35)}"/><rect x="148" y="106" width="16" height="56" rx="8" fill="${shade(c, -35)}"/>`,
  bottles: (c, n) =>
    `<rect x="82" y="24" width="36" height="${24 + n}" rx="6" fill="#3c434b"/><path d="M80 46h40c0 16 12 18 12 34v82a12 12 0 0 1-12 12H80a12 12 0 0 1-12-12V80c0-16 12-18 12-34z" fill="${c}"/><path d="M78 88v66" stroke="${shade(c, 55)}" stroke-width="7" stroke-linecap="round" opacity=".7"/><rect x="68" y="${118 + n}" width="64" height="20" fill="${shade(c, -25)}"/>`,
  kettles: (c, n) =>
    `<path d="M62 76h76l16 84a10 10 0 0 1-10 12H56a10 10 0 0 1-10-12z" fill="${c}"/><path d="M62 92L34 78l-6 12 28 34z" fill="${shade(c, -20)}"/><path d="M76 76c0-${26 + n} 48-${26 + n} 48 0z" fill="${shade(c, -30)}"/><circle cx="100" cy="50" r="7" fill="#333a42"/><path d="M138 86c36-8 42 50 12 60" fill="none" stroke="#333a42" stroke-width="10" stroke-linecap="round"/><rect x="44" y="168" width="112" height="10" rx="4" fill="#333a42"/>`,
  coffee: (c, n) =>
    `<rect x="48" y="34" width="104" height="36" rx="8" fill="${shade(c, -28)}"/><rect x="112" y="62" width="40" height="104" fill="${c}"/><rect x="48" y="158" width="104" height="16" rx="5" fill="${shade(c, -40)}"/><rect x="70" y="70" width="26" height="${16 + n}" fill="#41474e"/><path d="M60 110h48l-5 46H65z" fill="#dfe7ea"/><path d="M63 128h42l-3 26H66z" fill="#5b3a22"/><circle cx="132" cy="52" r="8" fill="${shade(c, 45)}"/>`,
  lamps: (c, n) =>
    `<ellipse cx="92" cy="172" rx="42" ry="8" fill="${shade(c, -35)}"/><path d="M92 170L${70 - n * 2} 108l54-52" fill="none" stroke="${shade(c, -20)}" stroke-width="8" stroke-linejoin="round" stroke-linecap="round"/><path d="M112 40l46 26-20 34-50-30z" fill="${c}"/><path d="M96 76l44 26-30 62-50-38z" fill="#fbe9a9" opacity=".55"/><circle cx="${70 - n * 2}" cy="108" r="7" fill="${shade(c, -50)}"/>`,
  chairs: (c, n) =>
    `<rect x="${62 - n}" y="26" width="${76 + n * 2}" height="78" rx="16" fill="${c}"/><path d="M70 44h60M70 60h60M70 76h60" stroke="${shade(c, -22)}" stroke-width="3"/><rect x="54" y="108" width="92" height="22" rx="11" fill="${shade(c, -18)}"/><rect x="95" y="130" width="10" height="30" fill="#474e56"/><path d="M60 174l40-16 40 16M100 158v18" fill="none" stroke="#474e56" stroke-width="7" stroke-linecap="round"/><circle cx="60" cy="178" r="6" fill="#23282d"/><circle cx="140" cy="178" r="6" fill="#23282d"/><circle cx="100" cy="180" r="6" fill="#23282d"/><path d="M50 84v34M150 84v34" stroke="#474e56" stroke-width="7" stroke-linecap="round"/>`,
};

/** A product in one of its colours, seen from view 0, 1 or 2. */
export function picture(product, { colour = product.colours[0], view = 0 } = {}) {
  const variety = Number(product.code.slice(3)) % 6;
  const turn = ["", 'transform="matrix(.82 .10 0 .92 18 2)"', 'transform="matrix(1.34 0 0 1.34 -34 -34)"'][
    view
  ];
  const frame = h("div", { class: "picture", role: "img", "aria-label": product.title });
  frame.innerHTML = `<svg viewBox="0 0 200 200" preserveAspectRatio="xMidYMid meet"><ellipse cx="100" cy="182" rx="64" ry="7" fill="#000" opacity=".08"/><g ${turn}>${DRAWN[product.department](colourOf(colour), variety)}</g></svg>`;
  return frame;
}

/** A colour made lighter or, below 0, darker by so many levels of 255. */
function shade(hex, by) {
  return `#${[1, 3, 5]
    .map((at) =>
      Math.max(0, Math.min(255, parseInt(hex.slice(at, at + 2), 16) + by))
        .toString(16)
        .padStart(2, "0"),
    )
    .join("")}`;
}
