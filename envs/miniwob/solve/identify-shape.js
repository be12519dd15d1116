// Presses the button that names the figure's kind.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const figure = document.querySelector("#area_svg > *");
const kind =
  { rect: "rectangle", circle: "circle", polygon: "triangle" }[figure.tagName] ??
  (/\d/.test(figure.textContent) ? "digit" : "letter");
return click(document.querySelector(`[data-type="${kind}"]`), kind);
