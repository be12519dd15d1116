// Types the quoted name, then submits.
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

const [, text] = goal.match(/^Enter "(.*)" into/);
const field = document.querySelector("#tt");
return field.value === text
  ? click(document.querySelector("#subbtn"), "Submit")
  : write(field, text, "text field");
