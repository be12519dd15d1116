// Opens each list that is not right yet and hits the drawn row of its option, then saves.
const click = (node, element) => {
  const box = node.getBoundingClientRect();
  return { action: "click_element", element, x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
// The open list is drawn below: a border of 1 px, then rows of 24 px (see envs/README.md).
const row = (list, value) => {
  const box = list.getBoundingClientRect();
  const at = [...list.options].findIndex((option) => option.text === value);
  return {
    action: "click_element",
    element: `option ${value}`,
    x: box.x + box.width / 2,
    y: box.bottom + 1 + (at + 0.5) * 24,
  };
};
const lists = [...document.querySelectorAll("select")];
if (!lists.length) return null;
for (const [, label, value] of goal.matchAll(/"([^"]+)" to "([^"]+)"/g)) {
  const list = lists.find((one) => one.name === label);
  if (list.value === value) continue;
  return list.matches(":open") ? row(list, value) : click(list, `${label} list`);
}
return click(document.querySelector("#save"), "Save button");
