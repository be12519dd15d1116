// Drags the shape the named way, then submits.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });
const drag = (node, to_x, to_y, element) => ({ action: "drag", element, ...middle(node), to_x, to_y });

const [, way] = goal.match(/(left|right|up|down) then press/);
const shape = document.querySelector(".black-shape");
if (shape.hasAttribute("transform")) return click(document.querySelector("#subbtn"), "Submit");
const { x, y } = middle(shape);
const [dx, dy] = { left: [-25, 0], right: [25, 0], up: [0, -25], down: [0, 25] }[way];
return drag(shape, x + dx, y + dy, "shape");
