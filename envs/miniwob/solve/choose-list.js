// Picks from the native list: by its drawn row where that is in sight, otherwise by keys on the closed list.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const [, name] = goal.match(/^Select (.*) from the list/);
const list = document.querySelector("#options");
const wanted = [...list.options].findIndex((option) => option.text === name);
if (list.selectedIndex === wanted) return click(document.querySelector("#area button"), "Submit");

// The open list is drawn below: a border of 1 px, then rows of 24 px (see envs/README.md). Only 210 px are shown.
const row = list.getBoundingClientRect().bottom + 1 + (wanted + 0.5) * 24;
if (row < 205) {
  if (!list.matches(":open")) return click(list, "list");
  return { action: "click_element", element: `option ${name}`, x: middle(list).x, y: row };
}
if (document.activeElement !== list) return { action: "press_key", key: "Tab" };
return { action: "press_key", key: wanted > list.selectedIndex ? "ArrowDown" : "ArrowUp" };
