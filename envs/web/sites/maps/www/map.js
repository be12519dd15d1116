// The map: streets, river, parks and places as one drawing. The mouse drags it, the buttons and Ctrl with the wheel zoom it.

import { h, icon } from "/kit/dom.js";
import { apply, state } from "/kit/site.js";
import { LAYERS } from "/layers.js";
import { HEIGHT, SCALES, WIDTH } from "/world.js";

const escaped = (text) =>
  text.replace(/[&<>"]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[sign]);

/**
 * A map with numbered pins and a route. `look` moves the view first: { at: "town", "route", "near" or "place", ids of the places to look at };
 * `onpick(place)` is called for a pressed place.
 */
export function mapView(world, { pins = [], route = null, look = null, onpick }) {
  if (look) apply("map.look", look);
  const canvas = h("div", { class: "canvas" }),
    scale = h("span", { class: "scale" }),
    level = h("b", { id: "zoom" });
  const zoom = (by) => {
    apply("map.zoom", { by });
    draw();
  };
  const layers = h("div", { class: "layers", role: "group", "aria-label": "Layer" });
  const node = h(
    "section",
    { class: "map", "aria-label": "Map" },
    canvas,
    h(
      "div",
      { class: "zoom" },
      h("button", { "aria-label": "Zoom in", onclick: () => zoom(1) }, icon("plus")),
      level,
      h("button", { "aria-label": "Zoom out", onclick: () => zoom(-1) }, icon("minus")),
    ),
    layers,
    scale,
  );
  const drawLayers = () =>
    layers.replaceChildren(
      ...Object.keys(LAYERS).map((name) =>
        h(
          "button",
          {
            "aria-pressed": String(state().layer === name),
            "data-layer": name,
            onclick: () => {
              apply("map.layer", { layer: name });
              draw();
            },
          },
          name[0].toUpperCase() + name.slice(1),
        ),
      ),
    );
  const frame = () => {
    const { view } = state(),
      size = SCALES[view.zoom - 1],
      { width, height } = canvas.getBoundingClientRect();
    return { size, w: (width || 880) / size, h: (height || 660) / size, view };
  };
  const box = ({ w, h: tall, view }, dx = 0, dy = 0) =>
    `${view.x - w / 2 + dx} ${view.y - tall / 2 + dy} ${w} ${tall}`;
  const draw = () => {
    const now = frame();
    canvas.innerHTML = `<svg viewBox="${box(now)}">${drawing(world, now.size, now.view.zoom, { pins, route }, LAYERS[state().layer])}</svg>`;
    canvas.dataset.layer = state().layer;
    level.textContent = String(now.view.zoom);
    scale.textContent = `${Math.round(100 / now.size / 10) * 10} m`;
    drawLayers();
  };
  drag(
    canvas,
    frame,
    box,
    (dx, dy) => {
      apply("map.drag", { x: dx, y: dy });
      draw();
    },
    (id) => onpick(world.byId.get(id)),
  );
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (event.ctrlKey) {
        event.preventDefault();
        zoom(event.deltaY < 0 ? 1 : -1);
      }
    },
    { passive: false },
  );
  document.body.append(node);
  draw();
  return node;
}

/** Dragging moves what is seen; a press without a drag picks what lies under it. */
function drag(canvas, frame, box, moved, picked) {
  let from = null;
  canvas.addEventListener("pointerdown", (event) => {
    from = {
      x: event.clientX,
      y: event.clientY,
      id: event.target.closest("[data-place]")?.dataset.place,
      now: frame(),
    };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (from)
      canvas.firstChild.setAttribute(
        "viewBox",
        box(from.now, (from.x - event.clientX) / from.now.size, (from.y - event.clientY) / from.now.size),
      );
  });
  canvas.addEventListener("pointerup", (event) => {
    if (!from) return;
    const { x, y, id, now } = from,
      far = Math.hypot(event.clientX - x, event.clientY - y);
    from = null;
    if (far > 4) moved((x - event.clientX) / now.size, (y - event.clientY) / now.size);
    else if (id) picked(id);
  });
}

function drawing(world, size, zoom, { pins, route }, paint) {
  const { across, down, river, bridges, parks, places } = world,
    px = (pixels) => (pixels / size).toFixed(1);
  const marked = new Set(pins.map(({ id }) => id)),
    wide = zoom > 3 ? 16 : 11;
  const houses =
    zoom < 3
      ? ""
      : down
          .slice(1)
          .flatMap((right, x) =>
            across
              .slice(1)
              .map((low, y) =>
                y === river.after
                  ? ""
                  : `<rect x="${down[x].at + 14}" y="${across[y].at + 14}" width="${right.at - down[x].at - 28}" height="${low.at - across[y].at - 28}" rx="6" fill="${paint.block}"/>`,
              ),
          )
          .join("");
  const green = parks
    .map(
      (park) =>
        `<rect x="${park.x + 12}" y="${park.y + 12}" width="${park.w - 24}" height="${park.h - 24}" rx="12" fill="${paint.park}"/>${zoom < 2 ? "" : `<text x="${park.x + park.w / 2}" y="${park.y + park.h / 2}" text-anchor="middle" font-size="${px(11.5)}" fill="#4c7a3a" font-style="italic">${escaped(park.name)}</text>`}`,
    )
    .join("");
  const water = `<path d="M-400 ${river.top}C300 ${river.top - 26} 700 ${river.top + 24} 1200 ${river.top}S2100 ${river.top - 22} ${WIDTH + 400} ${river.top}V${river.bottom}C2100 ${river.bottom + 22} 1700 ${river.bottom - 20} 1200 ${river.bottom}S300 ${river.bottom + 24} -400 ${river.bottom}z" fill="${paint.water}"/>`;
  const streets = (width, colour) =>
    across
      .map(({ at }) => `<path d="M-400 ${at}H${WIDTH + 400}" stroke="${colour}" stroke-width="${width}"/>`)
      .join("") +
    down
      .map(({ at }, x) =>
        bridges.has(x)
          ? `<path d="M${at} -400V${HEIGHT + 400}" stroke="${colour}" stroke-width="${width}"/>`
          : `<path d="M${at} -400V${across[river.after].at}M${at} ${across[river.after + 1].at}V${HEIGHT + 400}" stroke="${colour}" stroke-width="${width}"/>`,
      )
      .join("");
  const names =
    zoom < 2
      ? ""
      : across
          .flatMap(({ name, at }) =>
            [300, 1000, 1700].map(
              (x) =>
                `<text x="${x}" y="${at + 4 / size}" font-size="${px(11)}" text-anchor="middle">${escaped(name)}</text>`,
            ),
          )
          .join("") +
        down
          .flatMap(({ name, at }) =>
            [260, 900, 1500].map(
              (y) =>
                `<text transform="translate(${at + 4 / size} ${y}) rotate(-90)" font-size="${px(11)}" text-anchor="middle">${escaped(name)}</text>`,
            ),
          )
          .join("");
  const path = route
    ? `<path d="M${route.map(({ x, y }) => `${x} ${y}`).join("L")}" fill="none" stroke="#1c5fd4" stroke-width="${px(7)}" stroke-linejoin="round" stroke-linecap="round" opacity=".85"/>`
    : "";
  const spot = (place) =>
    `<g data-place="${place.id}" class="spot"><circle cx="${place.x}" cy="${place.y}" r="${px(zoom > 3 ? 7 : 4.5)}" fill="hsl(${place.hue} 58% 46%)" stroke="#fff" stroke-width="${px(1.5)}"/>${zoom > 4 ? `<text x="${place.x + 10 / size}" y="${place.y + 4 / size}" font-size="${px(12)}" class="name">${escaped(place.name)}</text>` : ""}</g>`;
  const pin = (place, at) =>
    `<g data-place="${place.id}" class="spot pin"><path transform="translate(${place.x} ${place.y}) scale(${px(1)})" d="M0 0C-9-12-13-17-13-24a13 13 0 0 1 26 0c0 7-4 12-13 24z" fill="#d43f34" stroke="#fff" stroke-width="1.5"/><text x="${place.x}" y="${place.y - 20 / size}" font-size="${px(12)}" text-anchor="middle" fill="#fff" font-weight="bold">${place.sign ?? at + 1}</text></g>`;
  return `<rect x="-1000" y="-1000" width="4400" height="3800" fill="${paint.ground}"/>${houses}${water}${green}${streets(wide + 5, paint.edge)}${streets(wide, paint.street)}<g fill="${paint.text}" class="streets">${names}</g>${path}${
    zoom > 1
      ? places
          .filter(({ id }) => !marked.has(id))
          .map(spot)
          .join("")
      : ""
  }${pins.map(pin).join("")}`;
}
