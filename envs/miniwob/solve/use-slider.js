// Drags the handle near the value, steps the rest with arrow keys, then submits.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });
const drag = (node, to_x, to_y, element) => ({ action: "drag", element, ...middle(node), to_x, to_y });

const wanted = Number(goal.match(/Select (-?\d+)/)[1]);
const value = Number(document.querySelector("#val").textContent);
const handle = document.querySelector(".ui-slider-handle");
if (value === wanted) return click(document.querySelector("#subbtn"), "Submit");
if (Math.abs(value - wanted) <= 2 && document.activeElement === handle) {
  return { action: "press_key", key: wanted > value ? "ArrowRight" : "ArrowLeft" };
}

// The page does not say where the scale begins and ends: take the first of its scales that agrees with the handle.
const upright = document.querySelector("#slider").classList.contains("ui-slider-vertical");
const part = parseFloat(upright ? handle.style.bottom : handle.style.left) / 100;
const scales = [-100, 0, 10, 100].flatMap((low) => [5, 10, 50, 100].map((length) => ({ low, length })));
const { low, length } = scales.find(
  ({ low, length }) => Math.round(low + part * length) === value && low <= wanted && wanted <= low + length,
);
const box = document.querySelector("#slider").getBoundingClientRect();
const goes = (wanted - low) / length - part;
const from = middle(handle);
return drag(
  handle,
  from.x + (upright ? 0 : goes * box.width),
  from.y - (upright ? goes * box.height : 0),
  "slider handle",
);
