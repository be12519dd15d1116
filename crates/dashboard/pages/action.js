// What an action says, as a sentence, and where it aims, as a mark over its screenshot.

import { svg } from "./dom.js";
import { number, spacedName } from "./format.js";

const ARROWS = { up: [0, -1], down: [0, 1], left: [-1, 0], right: [1, 0] };

/** The action in one line; all parts are text of the model. */
export function describe(action) {
  if (!action.valid) return "no action";
  const at = action.x === null ? "" : ` at ${number(action.x)}, ${number(action.y)}`;
  const quoted = action.text === null ? "" : ` “${action.text}”`;
  switch (action.kind) {
    case "click":
      return `${action.text && action.text !== "left" ? `${action.text} ` : ""}${
        action.number > 1 ? `${action.number} times ` : ""
      }click${at}`;
    case "drag":
      return `drag from ${number(action.from_x)}, ${number(action.from_y)} to ${number(action.x)}, ${number(action.y)}`;
    case "write":
      return `write${quoted}${at}${action.press_enter ? ", then Enter" : ""}`;
    case "press_key":
      return `press ${action.text}${action.number > 1 ? ` ${action.number} times` : ""}`;
    case "scroll":
      return `scroll ${action.text ?? ""}${action.number ? ` ${action.number} pixels` : ""}${at}`;
    case "wait":
      return action.number === null ? "wait" : `wait ${action.number} s`;
    default:
      return `${spacedName(action.kind ?? action.name)}${quoted}${action.number === null ? "" : ` ${action.number}`}${at}`;
  }
}

/** What a reply says beside its action, where its grammar has a field for that: JSON with `thought` or `note`, or text before the call. */
export function thought(action) {
  const text = action.raw_text ?? "";
  try {
    const reply = JSON.parse(text);
    const texts = [reply?.thought, reply?.note].filter((part) => typeof part === "string" && part !== "");
    return texts.length > 0 ? texts.join("\n") : null;
  } catch {
    const before = text
      .split(/<tool_call>|Action:|ACTION:/)[0]
      .replace(/^(Thought|THOUGHT):\s*/, "")
      .replace(/<\/?think>/g, "")
      .trim();
    return before === "" || before === text.trim() ? null : before;
  }
}

/** A picture of the screenshot's size that lies over it: a ring at a click, a line of a drag, an arrow of a scroll, a label of keys. */
export function mark(observation, action) {
  const [width, height] = [observation.width || 1, observation.height || 1];
  const size = Math.max(width, height);
  const parts = action.valid
    ? [...pointer(action, size), ...wheel(action, width, height), ...keys(action, width, height)]
    : [];
  return svg("svg", { class: "over", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, parts);
}

function pointer(action, size) {
  const [x, y] = [action.x, action.y];
  if (x === null || y === null || action.kind === "scroll") return [];
  const radius = size / 45;
  const parts = [];
  if (action.from_x !== null) {
    const line = { x1: action.from_x, y1: action.from_y, x2: x, y2: y };
    parts.push(
      svg("line", { class: "mark halo", ...line }),
      svg("line", { class: "mark", ...line }),
      svg("circle", { class: "mark", cx: action.from_x, cy: action.from_y, r: radius / 2 }),
    );
  }
  parts.push(
    svg("circle", { class: "mark halo", cx: x, cy: y, r: radius }),
    svg("circle", { class: "mark", cx: x, cy: y, r: radius }),
    svg("circle", { class: "mark dot", cx: x, cy: y, r: radius / 6 }),
  );
  return parts;
}

function wheel(action, width, height) {
  const way = ARROWS[action.text];
  if (action.kind !== "scroll" || !way) return [];
  const [x, y] = [action.x ?? width / 2, action.y ?? height / 2];
  const long = Math.min(width, height) / 4;
  const [toX, toY] = [x + way[0] * long, y + way[1] * long];
  const head = long / 4;
  const tip = [
    [toX, toY],
    [toX - way[0] * head - way[1] * head, toY - way[1] * head - way[0] * head],
    [toX - way[0] * head + way[1] * head, toY - way[1] * head + way[0] * head],
  ];
  const shaft = { x1: x - way[0] * long, y1: y - way[1] * long, x2: toX, y2: toY };
  const points = tip.map((point) => point.join(",")).join(" ");
  return [
    svg("line", { class: "mark halo", ...shaft }),
    svg("line", { class: "mark", ...shaft }),
    svg("polygon", { class: "mark dot", points }),
  ];
}

/** Longest text of a label; the whole is beside the picture. */
const LABEL_CHARS_MAX = 24;

function keys(action, width, height) {
  if (!["press_key", "hold_key", "write"].includes(action.kind) || !action.text) return [];
  const letters = [...action.text];
  const text =
    letters.length > LABEL_CHARS_MAX ? `${letters.slice(0, LABEL_CHARS_MAX).join("")}…` : action.text;
  const font = Math.max(width, height) / 36;
  const [wide, high] = [([...text].length * 0.62 + 1.4) * font, font * 1.9];
  // Below what is written into; at the bottom, where no point is named.
  const x = Math.max(0, Math.min(width - wide, (action.x ?? width / 2) - wide / 2));
  const y = Math.max(0, Math.min(height - high * 1.2, (action.y ?? height) + font * 1.4));
  return [
    svg("rect", { class: "key", x, y, width: wide, height: high, rx: font * 0.35 }),
    svg(
      "text",
      { class: "key-text", x: x + wide / 2, y: y + high * 0.66, "font-size": font, "text-anchor": "middle" },
      text,
    ),
  ];
}
