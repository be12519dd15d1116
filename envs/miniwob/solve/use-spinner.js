// Steps the spinner with keys, ten at a time while it is far off, then submits.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const field = document.querySelector("#spinner");
const lacking = Number(goal.match(/Select (-?\d+)/)[1]) - Number(field.value);
if (lacking === 0) return click(document.querySelector("#subbtn"), "Submit");
if (document.activeElement !== field) return click(field, "spinner");
const far = Math.abs(lacking) > 5;
return {
  action: "press_key",
  key: lacking > 0 ? (far ? "PageUp" : "ArrowUp") : far ? "PageDown" : "ArrowDown",
};
