// Presses 1 while the numbers are shown, then the blank squares in the order in which the page keeps them.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const one = [...document.querySelectorAll("#area_svg text")].find((text) => text.textContent === "1");
return click(one ?? document.querySelector("#area_svg rect"), "next number");
