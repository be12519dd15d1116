// Drags the corner of the text area by its side, then submits.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });
const drag = (node, to_x, to_y, element) => ({ action: "drag", element, ...middle(node), to_x, to_y });

const [, side, size] = goal.match(/the (width|height) is (smaller|larger)/);
if (step > 0) return click(document.querySelector("#submit"), "Submit");
const corner = document.querySelector(".ui-resizable-se");
const by = size === "larger" ? 15 : -15;
const { x, y } = middle(corner);
return drag(
  corner,
  x + (side === "width" ? by : 0),
  y + (side === "height" ? by : 0),
  "corner of the text area",
);
