// Types the quoted name in the wanted case, then submits.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });
const write = (node, content, element) => ({
  action: "write_element_abs",
  content,
  element,
  ...middle(node),
});

const [, name, letters] = goal.match(/^Type "(.*)" in all (upper|lower) case/);
const text = letters === "upper" ? name.toUpperCase() : name.toLowerCase();
const field = document.querySelector("#tt");
return field.value === text
  ? click(document.querySelector("#subbtn"), "Submit")
  : write(field, text, "text field");
