// Presses the box of the named colour.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const [, color] = goal.match(/^Click on the (.*) colored box/);
return click(document.querySelector(`#area [data-color="${color}"]`), `${color} box`);
