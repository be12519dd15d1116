// Presses the text field with the named number.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const [, number] = goal.match(/the (\d)/);
return click(document.querySelector(`#tt${number}`), `text field ${number}`);
