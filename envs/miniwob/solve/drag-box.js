// Drags the small box into the middle of the large one, then submits.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });
const drag = (node, to_x, to_y, element) => ({ action: "drag", element, ...middle(node), to_x, to_y });

const small = document.querySelector("#draggableSmall");
const { x, y } = middle(document.querySelector("#draggableLarge"));
const off = Math.abs(middle(small).x - x) + Math.abs(middle(small).y - y);
return off > 4 ? drag(small, x, y, "small box") : click(document.querySelector("#subbtn"), "Submit");
