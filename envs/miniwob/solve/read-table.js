// Types the value that the table gives for the name, then submits.
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

const [, name] = goal.match(/value of (.*) into the text field/);
const value = [...document.querySelectorAll("#tab tr")].find((row) => row.cells[0].textContent === name)
  .cells[1].textContent;
const field = document.querySelector("#tt");
return field.value === value
  ? click(document.querySelector("#subbtn"), "Submit")
  : write(field, value, "text field");
