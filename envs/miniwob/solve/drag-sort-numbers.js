// Drags the smallest number that is not in its place up to it, then submits.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });
const drag = (node, to_x, to_y, element) => ({ action: "drag", element, ...middle(node), to_x, to_y });

const items = [...document.querySelectorAll("#sortable li")];
const value = (item) => Number(item.textContent);
const sorted = [...items].sort((one, other) => value(one) - value(other));
const to = items.findIndex((item, at) => value(item) !== value(sorted[at]));
if (to < 0) return click(document.querySelector("#subbtn"), "Submit");
const end = middle(items[to]);
return drag(sorted[to], end.x, end.y - 6, `number ${value(sorted[to])}`);
