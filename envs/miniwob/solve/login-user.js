// Types the name and the password, then logs in.
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

const [, username, password] = goal.match(/username "(.*)" and the password "(.*)" into/);
for (const [id, text] of Object.entries({ username, password })) {
  const field = document.querySelector(`#${id}`);
  if (field.value !== text) return write(field, text, `${id} field`);
}
return click(document.querySelector("#subbtn"), "Login");
