// Types the last word of the long text, then submits.
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

const word = document
  .querySelector("#text-area")
  .value.trim()
  .split(/\s+/)
  .at(-1)
  .replace(/[^a-zA-Z0-9]/g, "");
const field = document.querySelector("#answer-input");
return field.value === word
  ? click(document.querySelector("#subbtn"), "Submit")
  : write(field, word, "text field");
