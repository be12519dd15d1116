// Drags each shape of the named kind into the box, side by side, then submits.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });
const drag = (node, to_x, to_y, element) => ({ action: "drag", element, ...middle(node), to_x, to_y });

const kind = { rectangles: "rect:not(#shape-container)", circles: "circle", triangles: "polygon" }[
  goal.match(/all (\w+) into/)[1]
];
const box = document.querySelector("#shape-container").getBoundingClientRect();
const shapes = [...document.querySelectorAll(`#area_svg ${kind}`)];
const inside = ({ x, y }) => x > box.x + 8 && x < box.right - 8 && y > box.y + 8 && y < box.bottom - 8;
const at = shapes.findIndex((shape) => !inside(middle(shape)));
if (at < 0) return click(document.querySelector("#subbtn"), "Submit");
return drag(shapes[at], box.x + 16 + at * 16, box.y + box.height / 2, "shape");
