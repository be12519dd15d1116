// Types the word with the named number, then submits.
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

const [, number] = goal.match(/the (\d+)/);
const words = document.querySelector("#area p").textContent.trim().split(/\s+/);
const word = words[number - 1].replace(/[^a-zA-Z]/g, "");
const field = document.querySelector("#answer-input");
return field.value === word
  ? click(document.querySelector("#subbtn"), "Submit")
  : write(field, word, "text field");
