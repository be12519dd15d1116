// Counts what fits the description and presses the button with that number.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const [, size, color, thing] = goal.match(
  /^How many (?:(large|small) )?(?:(red|green|blue|aqua|black|magenta|yellow) )?(\w+?)s are there/,
);
const kinds = { rect: "rectangle", circle: "circle", polygon: "triangle" };
const fits = (node) => {
  const written = node.tagName === "text";
  const wide = written ? parseFloat(node.getAttribute("font-size")) : node.getBBox().width;
  const name = written ? node.textContent : kinds[node.tagName];
  const kind = written ? (/\d/.test(name) ? "digit" : "letter") : "shape";
  return (
    (!size || size === (wide > 15 ? "large" : "small")) &&
    (!color || color === node.getAttribute("fill")) &&
    ["item", name, kind].includes(thing)
  );
};
const count = [...document.querySelectorAll("#area_svg > *")].filter(fits).length;
return click(
  [...document.querySelectorAll("#count-buttons button")].find(
    (button) => Number(button.textContent) === count,
  ),
  `button ${count}`,
);
