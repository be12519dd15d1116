// Presses a link with the quoted text.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const [, text] = goal.match(/link "(.*)"/);
return click(
  [...document.querySelectorAll(".alink")].find((link) => link.textContent === text),
  `link ${text}`,
);
