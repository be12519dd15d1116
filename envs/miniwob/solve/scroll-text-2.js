// Scrolls the text to the named end, then submits.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const text = document.querySelector("#text-area");
const down = goal.includes("bottom");
const left = down ? text.scrollHeight - text.clientHeight - text.scrollTop : text.scrollTop;
return left > 2
  ? { action: "scroll", direction: down ? "down" : "up" }
  : click(document.querySelector("#subbtn"), "Submit");
