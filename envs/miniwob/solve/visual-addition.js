// Counts the blocks, types the number, then submits.
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

const count = String(document.querySelectorAll(".addition-block").length);
const field = document.querySelector("#math-answer");
return field.value === count
  ? click(document.querySelector("#subbtn"), "Submit")
  : write(field, count, "answer field");
