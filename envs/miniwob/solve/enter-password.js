// Types the quoted password into both fields, then submits.
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

const [, text] = goal.match(/password "(.*)" into/);
const field = [...document.querySelectorAll("#form input")].find((one) => one.value !== text);
return field ? write(field, text, `${field.id} field`) : click(document.querySelector("#subbtn"), "Submit");
