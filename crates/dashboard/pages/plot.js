// A plot over time or versions: lines with bands, values under the cursor, a range to zoom into; its numbers as a table behind a click.

import { el, put, svg } from "./dom.js";
import { NONE, number } from "./format.js";
import { numbers } from "./numbers.js";
import { ticksOf } from "./ticks.js";

const WIDTH = 640;
const [LEFT, RIGHT, TOP, BOTTOM] = [66, 14, 10, 26];
/** Most plots that zoom together. */
const TOGETHER_MAX = 12;
/** A drag of fewer units than this is a click. */
const DRAG_MIN = 8;

/** What the reader zoomed to, and where the cursor stands, by `zoom` key: a redraw of the page keeps both. */
const zooms = new Map();
let cursor = null;
/** Plots of one key zoom together. */
const plots = new Map();

const isKnown = (point) => point.value !== null && point.value !== undefined && Number.isFinite(point.value);
const hasBand = ({ low, high }) => Number.isFinite(low) && Number.isFinite(high);

/**
 * `series`: `[{ name, points }]`, points `{ at, value, low, high }`, `at` in seconds since the Unix epoch or, with `axis`
 * "version", a whole number; or in seconds since each run's start with "elapsed". A gap is where a value is missing; `low` and `high` are drawn as a band. The
 * scale holds 0, and ends at `max` where that is given. `range` is the part of the axis that is shown at first; plots with
 * one `zoom` key are zoomed together.
 */
export function plot(series, options) {
  const all = series.flatMap(({ points }) => points);
  const known = all.filter(isKnown);
  if (new Set(known.map(({ at }) => at)).size < 2)
    return el(
      "p",
      { class: "note" },
      options.missing ?? "A line needs two points: not enough has ended yet.",
    );
  return new Plot(series, known, options).node;
}

class Plot {
  constructor(series, known, { label, write = number, max, height = 230, axis = "time", range, zoom }) {
    Object.assign(this, { series, known, label, write, max, height, axis, zoom: zoom ?? label });
    const ats = known.map(({ at }) => at);
    this.whole = range ?? [Math.min(...ats), Math.max(...ats)];
    this.svg = svg("svg", {
      class: "chart",
      viewBox: `0 0 ${WIDTH} ${height}`,
      role: "img",
      "aria-label": this.sentence(),
    });
    this.tip = el("div", { class: "plot-tip", hidden: true });
    this.reset = el(
      "button",
      { type: "button", class: "quiet plot-reset", hidden: true, on: { click: () => this.zoomTo(null) } },
      "Show all",
    );
    const area = el("div", { class: "plot", "data-plot": label }, this.svg, this.tip, this.reset);
    this.listen(area);
    this.node = el(
      "figure",
      { class: "plot-figure" },
      series.length > 1 ? this.legend() : null,
      area,
      this.table(),
    );
    // Those of one page are made before any of them is part of it: what is gone is left out at a zoom.
    plots.set(this.zoom, [...(plots.get(this.zoom) ?? []), this].slice(-TOGETHER_MAX));
    this.draw();
    // A page that was drawn anew under a resting pointer.
    if (cursor?.label === label && cursor.zoom === this.zoom)
      requestAnimationFrame(() => this.node.isConnected && this.hover(cursor.clientX));
  }

  sentence() {
    const { series, write } = this;
    const of = ({ name, points }) => {
      const values = points.filter(isKnown).map(({ value }) => value);
      if (values.length === 0) return `${name}: no points`;
      const extent = `from ${write(Math.min(...values))} to ${write(Math.max(...values))}`;
      return `${name}: ${values.length} points, ${extent}, last ${write(values[values.length - 1])}`;
    };
    return series.length === 1
      ? of({ ...series[0], name: this.label })
      : `${this.label}. ${series.map(of).join("; ")}`;
  }

  legend() {
    return el(
      "ul",
      { class: "plot-legend" },
      this.series.map(({ name }, index) =>
        el("li", {}, el("span", { class: `line-swatch series-${index}`, "aria-hidden": "true" }), name),
      ),
    );
  }

  table() {
    const { series, write, axis, label } = this;
    const banded = this.known.some(hasBand);
    const interval = (point) => (hasBand(point) ? `${write(point.low)} to ${write(point.high)}` : NONE);
    const rows = series.flatMap(({ name, points }) =>
      points
        .filter(isKnown)
        .map((point) => [
          ...(series.length > 1 ? [name] : []),
          this.named(point.at),
          write(point.value),
          ...(banded ? [interval(point)] : []),
        ]),
    );
    return numbers(rows, [
      ...(series.length > 1 ? ["run"] : []),
      axis,
      label,
      ...(banded ? ["95\u202f% interval"] : []),
    ]);
  }

  /** A point of the axis in full. */
  named(at) {
    return ticksOf(this.axis, [at, at]).whole(at);
  }

  get range() {
    return zooms.get(this.zoom) ?? this.whole;
  }

  x(at) {
    const [from, to] = this.range;
    return LEFT + ((at - from) / (to - from || 1)) * (WIDTH - LEFT - RIGHT);
  }

  at(x) {
    const [from, to] = this.range;
    return from + ((x - LEFT) / (WIDTH - LEFT - RIGHT)) * (to - from);
  }

  y(value) {
    const { low, high } = this.scale;
    return TOP + ((high - value) / (high - low)) * (this.height - TOP - BOTTOM);
  }

  draw() {
    const { write, height } = this;
    const [from, to] = this.range;
    const inRange = this.known.filter(({ at }) => at >= from && at <= to);
    this.scale = scaleOf(inRange.length > 0 ? inRange : this.known, this.max);
    const marks = this.scale.marks.map((value) => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: this.y(value), y2: this.y(value) }),
      svg("text", { class: "tick end", x: LEFT - 6, y: this.y(value) + 4 }, write(value)),
    ]);
    const { ticks, short } = ticksOf(this.axis, [from, to]);
    const labels = ticks.map((at) => {
      const x = this.x(at);
      const anchor = x > WIDTH - 50 ? "end" : "middle";
      return [
        svg("line", { class: "grid", x1: x, x2: x, y1: height - BOTTOM, y2: height - BOTTOM + 4 }),
        svg(
          "text",
          { class: `tick ${anchor}`, x: anchor === "end" ? WIDTH - 2 : x, y: height - 8 },
          short(at),
        ),
      ];
    });
    this.selection = svg("rect", {
      class: "selection",
      y: TOP,
      height: height - TOP - BOTTOM,
      width: 0,
      x: 0,
    });
    this.hair = svg("g", { class: "hair" });
    put(
      this.svg,
      marks.flat(),
      labels.flat(),
      // An svg of its own cuts off what a zoom leaves outside.
      svg(
        "svg",
        {
          x: LEFT,
          y: 0,
          width: WIDTH - LEFT - RIGHT,
          height,
          viewBox: `${LEFT} 0 ${WIDTH - LEFT - RIGHT} ${height}`,
        },
        this.series.map(({ points }, index) => [this.band(points, index), this.curve(points, index)]).flat(),
      ),
      this.selection,
      this.hair,
    );
    this.reset.hidden = !zooms.has(this.zoom);
  }

  curve(points, index) {
    let path = "";
    let pen = "M";
    const alone = [];
    points.forEach((point, at) => {
      if (!isKnown(point)) {
        pen = "M";
        return;
      }
      path += `${pen}${this.x(point.at).toFixed(1)} ${this.y(point.value).toFixed(1)}`;
      // A point between two gaps has no line.
      const neighbours = [points[at - 1], points[at + 1]].filter((one) => one && isKnown(one));
      if (neighbours.length === 0)
        alone.push(
          svg("circle", {
            class: `dot series-${index}`,
            cx: this.x(point.at),
            cy: this.y(point.value),
            r: 3,
          }),
        );
      pen = "L";
    });
    return [svg("path", { class: `curve series-${index}`, d: path }), ...alone];
  }

  band(points, index) {
    const whole = [];
    let part = [];
    for (const point of [...points, {}]) {
      if (isKnown(point) && hasBand(point)) part.push(point);
      else if (part.length > 0) {
        whole.push(part);
        part = [];
      }
    }
    return whole.map((part) => {
      const corner = (at, value) => `${this.x(at).toFixed(1)} ${this.y(value).toFixed(1)}`;
      const upper = part.map(({ at, high }) => corner(at, high));
      const lower = part.map(({ at, low }) => corner(at, low)).reverse();
      // One point alone has a bar.
      if (part.length === 1)
        return svg("path", { class: `whisker series-${index}`, d: `M${upper[0]}L${lower[0]}` });
      return svg("path", { class: `band series-${index}`, d: `M${[...upper, ...lower].join("L")}Z` });
    });
  }

  /** Where the pointer is, in units of the picture. */
  unit(clientX) {
    const box = this.svg.getBoundingClientRect();
    return Math.max(LEFT, Math.min(WIDTH - RIGHT, ((clientX - box.left) / (box.width || 1)) * WIDTH));
  }

  listen(area) {
    let began = null;
    const select = (to) => {
      const [left, right] = [Math.min(began, to), Math.max(began, to)];
      this.selection.setAttribute("x", left);
      this.selection.setAttribute("width", right - left);
    };
    area.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.target.closest("button")) return;
      began = this.unit(event.clientX);
      area.setPointerCapture(event.pointerId);
    });
    area.addEventListener("pointermove", (event) => {
      this.hover(event.clientX);
      if (began !== null) select(this.unit(event.clientX));
    });
    area.addEventListener("pointerup", (event) => {
      if (began === null) return;
      const [from, to] = [began, this.unit(event.clientX)].sort((a, b) => a - b);
      began = null;
      if (to - from >= DRAG_MIN) this.zoomTo([this.at(from), this.at(to)]);
      else this.selection.setAttribute("width", 0);
    });
    area.addEventListener("pointercancel", () => {
      began = null;
      this.selection.setAttribute("width", 0);
    });
    area.addEventListener("pointerleave", () => this.leave());
    area.addEventListener("dblclick", () => this.zoomTo(null));
  }

  zoomTo(range) {
    if (range === null) zooms.delete(this.zoom);
    else zooms.set(this.zoom, range);
    for (const one of plots.get(this.zoom) ?? []) if (one.node.isConnected) one.draw();
    this.leave();
  }

  leave() {
    cursor = null;
    this.tip.hidden = true;
    put(this.hair);
  }

  /** The nearest point of each line, marked, with its time and value. */
  hover(clientX) {
    cursor = { label: this.label, zoom: this.zoom, clientX };
    const at = this.at(this.unit(clientX));
    const [from, to] = this.range;
    const nearest = this.series.map(({ points }) =>
      points
        .filter((point) => isKnown(point) && point.at >= from && point.at <= to)
        .reduce(
          (best, point) => (best && Math.abs(best.at - at) <= Math.abs(point.at - at) ? best : point),
          null,
        ),
    );
    const first = nearest
      .filter(Boolean)
      .reduce(
        (best, point) => (best && Math.abs(best.at - at) <= Math.abs(point.at - at) ? best : point),
        null,
      );
    if (!first) {
      this.leave();
      return;
    }
    const x = this.x(first.at);
    put(
      this.hair,
      svg("line", { class: "cursor", x1: x, x2: x, y1: TOP, y2: this.height - BOTTOM }),
      nearest.map((point, index) =>
        point
          ? svg("circle", {
              class: `dot series-${index}`,
              cx: this.x(point.at),
              cy: this.y(point.value),
              r: 4,
            })
          : null,
      ),
    );
    const value = (point) =>
      `${this.write(point.value)}${hasBand(point) ? ` [${this.write(point.low)}, ${this.write(point.high)}]` : ""}`;
    put(
      this.tip,
      el("strong", {}, this.named(first.at)),
      nearest.map((point, index) =>
        point
          ? el(
              "span",
              {},
              this.series.length > 1
                ? el("span", { class: `line-swatch series-${index}`, "aria-hidden": "true" })
                : null,
              this.series.length > 1 ? `${this.series[index].name} ` : null,
              value(point),
            )
          : null,
      ),
    );
    this.tip.hidden = false;
    const share = x / WIDTH;
    this.tip.style.setProperty("left", `${100 * share}%`);
    this.tip.style.setProperty(
      "transform",
      share > 0.5 ? "translateX(calc(-100% - 10px))" : "translateX(10px)",
    );
  }
}

/** The levels of the y axis: they hold 0, and end at `max` where that is given. */
function scaleOf(points, max) {
  const levels = points.flatMap(({ value, low, high }) => [value, low ?? value, high ?? value]);
  const [least, most] = [Math.min(0, ...levels), max ?? Math.max(0, ...levels)];
  const rise = max > 0 ? max / 4 : step(most - least || 1);
  const lowest = Math.floor(least / rise);
  const low = lowest * rise;
  const high = max ?? Math.max(low + rise, Math.ceil(most / rise) * rise);
  // Of whole numbers, so that 0 is 0.
  const marks = Array.from(
    { length: Math.round((high - low) / rise) + 1 },
    (_, mark) => (lowest + mark) * rise,
  );
  return { low, high, marks };
}

function step(span) {
  const rough = span / 4;
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  return [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough) ?? 1;
}
