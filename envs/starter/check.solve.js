// Turns over the first box whose tick differs from the goal's list, then saves.
const click = (node, element) => {
  const box = node.getBoundingClientRect();
  return { action: "click_element", element, x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const boxes = [...document.querySelectorAll("input[type=checkbox]")];
if (!boxes.length) return null;
const wanted = [...goal.matchAll(/"([^"]+)"/g)].map(([, topic]) => topic);
const wrong = boxes.find((box) => box.checked !== wanted.includes(box.value));
return wrong
  ? click(wrong, `checkbox ${wrong.value}`)
  : click(document.querySelector("#save"), "Save button");
