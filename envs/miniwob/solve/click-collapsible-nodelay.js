// Unfolds the section, then submits.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const section = document.querySelector(".ui-accordion-content");
return section.checkVisibility()
  ? click(document.querySelector("#subbtn"), "Submit")
  : click(document.querySelector("#area h3"), "section");
