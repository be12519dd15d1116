// Drags the named item to the place that the goal describes.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const drag = (node, to_x, to_y, element) => ({ action: "drag", element, ...middle(node), to_x, to_y });

const [, name, how] = goal.match(/^Drag (\S+) (.*)\.$/);
const items = [...document.querySelectorAll("#sortable li")];
const at = items.findIndex((item) => item.textContent.trim() === name);
const place = {
  "to the top": 0,
  "to the bottom": items.length - 1,
  "up by one position": at - 1,
  "down by one position": at + 1,
};
const to = place[how] ?? Number(how.match(/\d/)[0]) - 1;
const end = middle(items[to]);
return drag(items[at], end.x, end.y + (to > at ? 6 : -6), name);
