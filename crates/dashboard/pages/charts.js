// Charts as SVG, each with a sentence for those who do not see it and its numbers as a table behind a click.

import { el, slug, svg, table } from "./dom.js";
import { NONE, number, percent, spacedName } from "./format.js";

const WIDTH = 640;

/** Parts of a whole as one bar and a legend: where time went. */
export function waterfall(parts, write, label) {
  const visible = parts.filter((part) => part.micros > 0);
  if (visible.length === 0) return el("p", { class: "note" }, "No time was accounted for yet.");
  const sentence = visible.map((part) => `${spacedName(part.cause)} ${percent(part.share)}`).join(", ");
  return el(
    "div",
    { class: "waterfall" },
    el(
      "div",
      { class: "bar", role: "img", "aria-label": `${label}: ${sentence}` },
      visible.map((part) =>
        el("span", {
          class: `part part-${part.cause}`,
          title: `${spacedName(part.cause)}: ${percent(part.share)}`,
          style: { "flex-grow": part.share },
        }),
      ),
    ),
    el(
      "ul",
      { class: "legend" },
      parts.map((part) =>
        el(
          "li",
          { class: part.micros > 0 ? null : "empty" },
          el("span", { class: `swatch part-${part.cause}`, "aria-hidden": "true" }),
          el("span", { class: "name" }, spacedName(part.cause)),
          el("span", { class: "number" }, write(part.micros)),
          el("span", { class: "number strong" }, percent(part.share)),
        ),
      ),
    ),
  );
}

const step = (span) => {
  const rough = span / 4;
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  return [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough) ?? 1;
};

/**
 * A line over `axis`: points are `{ at, value }`, `at` in seconds since the Unix epoch or whatever `formatX` writes; gaps where a value is
 * missing. A point with `low` and `high` has its 95 % interval drawn. The scale holds 0, and ends at `max` where that is given.
 */
export function line(
  points,
  {
    label,
    write = number,
    max,
    height = 170,
    axis = "time",
    formatX,
    missing = "A line needs two points: not enough has ended yet.",
  },
) {
  const known = points.filter((point) => point.value !== null && Number.isFinite(point.value));
  if (known.length < 2) return el("p", { class: "note" }, missing);
  const [left, right, top, bottom] = [66, 10, 10, 24];
  const from = points[0].at;
  const span = points[points.length - 1].at - from || 1;
  const levels = known.flatMap(({ value, low, high }) => [value, low ?? value, high ?? value]);
  const [least, most] = [Math.min(0, ...levels), max ?? Math.max(0, ...levels)];
  const rise = max > 0 ? max / 4 : step(most - least || 1);
  const lowest = Math.floor(least / rise);
  const floor = lowest * rise;
  const ceiling = max ?? Math.max(floor + rise, Math.ceil(most / rise) * rise);
  const x = (at) => left + ((at - from) / span) * (WIDTH - left - right);
  const y = (value) => top + ((ceiling - value) / (ceiling - floor)) * (height - top - bottom);
  let path = "";
  let pen = "M";
  for (const point of points) {
    if (point.value === null || !Number.isFinite(point.value)) {
      pen = "M";
    } else {
      path += `${pen}${x(point.at).toFixed(1)} ${y(point.value).toFixed(1)}`;
      pen = "L";
    }
  }
  const marks = [];
  for (let mark = 0; mark <= Math.round((ceiling - floor) / rise); mark += 1) {
    // Of whole numbers, so that 0 is 0.
    const value = (lowest + mark) * rise;
    marks.push(svg("line", { class: "grid", x1: left, x2: WIDTH - right, y1: y(value), y2: y(value) }));
    marks.push(svg("text", { class: "tick end", x: left - 6, y: y(value) + 4 }, write(value)));
  }
  const clock = (at) =>
    new Date(at * 1000).toLocaleTimeString(
      [],
      span > 172800 ? { month: "short", day: "numeric" } : { hour: "2-digit", minute: "2-digit" },
    );
  const tickLabel = formatX ?? clock;
  for (const share of [0, 0.5, 1]) {
    const at = from + share * span;
    marks.push(
      svg(
        "text",
        { class: `tick ${["start", "middle", "end"][share * 2]}`, x: x(at), y: height - 6 },
        tickLabel(at),
      ),
    );
  }
  const spread = known.filter(({ low, high }) => Number.isFinite(low) && Number.isFinite(high));
  const whiskers = spread
    .map(({ at, low, high }) => `M${x(at).toFixed(1)} ${y(low).toFixed(1)}V${y(high).toFixed(1)}`)
    .join("");
  const values = known.map((point) => point.value);
  const extent = `from ${write(Math.min(...values))} to ${write(Math.max(...values))}`;
  const sentence = `${label}: ${known.length} points, ${extent}, last ${write(values[values.length - 1])}`;
  const picture = svg(
    "svg",
    { class: "chart", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": sentence },
    marks,
    whiskers ? svg("path", { class: "whiskers", d: whiskers }) : null,
    svg("path", { class: "curve", d: path }),
  );
  const interval = ({ low, high }) =>
    Number.isFinite(low) && Number.isFinite(high) ? `${write(low)} to ${write(high)}` : NONE;
  const rows = known.map((point) => [
    tickLabel(point.at),
    write(point.value),
    ...(whiskers ? [interval(point)] : []),
  ]);
  return el("figure", {}, picture, numbers(rows, [axis, label, ...(whiskers ? ["95\u202f% interval"] : [])]));
}

/** A histogram: pairs of a value and how often. */
export function histogram(pairs, { label, height = 150, bars = 32 }) {
  if (pairs.length === 0) return el("p", { class: "note" }, "Nothing to count yet.");
  const [least, most] = [pairs[0][0], pairs[pairs.length - 1][0]];
  const width = Math.max(1, Math.ceil((most - least + 1) / bars));
  const bins = new Array(Math.floor((most - least) / width) + 1).fill(0);
  for (const [value, times] of pairs) bins[Math.floor((value - least) / width)] += times;
  const highest = Math.max(...bins);
  const [left, right, top, bottom] = [66, 10, 10, 24];
  const wide = (WIDTH - left - right) / bins.length;
  const name = (bin) =>
    width === 1 ? `${least + bin}` : `${least + bin * width}–${least + (bin + 1) * width - 1}`;
  const tall = (times) => (times / highest) * (height - top - bottom);
  const columns = bins.map((times, bin) =>
    svg(
      "rect",
      {
        class: "column",
        x: left + bin * wide + 1,
        y: height - bottom - tall(times),
        width: Math.max(1, Math.min(wide - 2, 60)),
        height: tall(times),
      },
      svg("title", {}, `${name(bin)}: ${number(times)}`),
    ),
  );
  const every = Math.ceil(bins.length / 10);
  const ticks = bins.map((_, bin) =>
    bin % every === 0
      ? svg(
          "text",
          { class: "tick middle", x: left + bin * wide + Math.min(wide, 62) / 2, y: height - 6 },
          name(bin),
        )
      : null,
  );
  const sentence = `${label}: ${bins.length} bars, most (${number(highest)}) at ${name(bins.indexOf(highest))}`;
  const scale = svg("text", { class: "tick end", x: left - 6, y: top + 8 }, number(highest));
  const picture = svg(
    "svg",
    { class: "chart", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": sentence },
    svg("line", { class: "grid", x1: left, x2: WIDTH - right, y1: height - bottom, y2: height - bottom }),
    columns,
    ticks,
    scale,
  );
  return el(
    "figure",
    {},
    picture,
    numbers(
      bins.map((times, bin) => [name(bin), number(times)]),
      [label, "count"],
    ),
  );
}

/** Words and how often, as bars: an object or pairs. */
export function bars(entries, label) {
  const pairs = (Array.isArray(entries) ? entries : Object.entries(entries)).sort((a, b) => b[1] - a[1]);
  if (pairs.length === 0) return el("p", { class: "note" }, NONE);
  const whole = pairs.reduce((sum, [, times]) => sum + times, 0);
  const most = pairs[0][1] || 1;
  return el(
    "ul",
    { class: "bars", "aria-label": label },
    pairs
      .slice(0, 20)
      .map(([name, times]) =>
        el(
          "li",
          {},
          el("span", { class: "name", title: name }, spacedName(name)),
          el(
            "span",
            { class: "track", "aria-hidden": "true" },
            el("span", { class: "fill", style: { width: `${(100 * times) / most}%` } }),
          ),
          el("span", { class: "number" }, number(times)),
          el("span", { class: "number strong" }, percent(times / whole)),
        ),
      ),
  );
}

function numbers(rows, names) {
  const id = `numbers-${slug(names.join(" "))}`;
  const fold = el("details", { class: "numbers", id }, el("summary", { id: `${id}-fold` }, "Numbers"));
  // Made when asked for: most people look at the picture.
  fold.addEventListener("toggle", () => {
    if (fold.open && fold.children.length === 1) {
      fold.append(
        table(
          names.map((name, at) => ({ name, of: (row) => row[at], numeric: at > 0 })),
          rows,
          names.join(" and "),
        ),
      );
    }
  });
  return fold;
}
