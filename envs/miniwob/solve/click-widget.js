// Presses a widget of the named kind.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const [, kind] = goal.match(/"(.*)" widget/);
return click(document.querySelector(`#area [data-type="${kind}"]`), kind);
