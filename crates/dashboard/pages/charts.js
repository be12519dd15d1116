// Charts as SVG, each with a sentence for those who do not see it and its numbers as a table behind a click.

import { el, svg } from "./dom.js";
import { NONE, number, percent, spacedName } from "./format.js";
import { numbers } from "./numbers.js";

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
      // What took no time takes no line.
      visible.map((part) =>
        el(
          "li",
          {},
          el("span", { class: `swatch part-${part.cause}`, "aria-hidden": "true" }),
          el("span", { class: "name" }, spacedName(part.cause)),
          el("span", { class: "number" }, write(part.micros)),
          el("span", { class: "number strong" }, percent(part.share)),
        ),
      ),
    ),
  );
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

/** Words and how often, as bars: an object or pairs. `address` gives where a word leads; `tone` is `bad` for failures. */
export function bars(entries, label, address, tone = "") {
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
          address
            ? el("a", { class: "name", title: name, href: address(name) }, spacedName(name))
            : el("span", { class: "name", title: name }, spacedName(name)),
          el(
            "span",
            { class: "track", "aria-hidden": "true" },
            el("span", { class: `fill ${tone}`, style: { width: `${(100 * times) / most}%` } }),
          ),
          el("span", { class: "number" }, number(times)),
          el("span", { class: "number strong" }, percent(times / whole)),
        ),
      ),
  );
}
