// Marks the paragraph from its first to its last letter, then submits.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const text = document.querySelector("#randomText").firstChild;
const marked = getSelection().toString().replace(/\s/g, "");
if (marked === text.textContent.replace(/\s/g, "")) return click(document.querySelector("#subbtn"), "Submit");
const letters = document.createRange();
letters.setStart(text, 0);
letters.setEnd(text, text.data.trimEnd().length);
const lines = letters.getClientRects();
const [first, last] = [lines[0], lines[lines.length - 1]];
return {
  action: "drag",
  element: "text",
  x: first.left - 2,
  y: first.top + first.height / 2,
  to_x: last.right + 3,
  to_y: last.top + last.height / 2,
};
