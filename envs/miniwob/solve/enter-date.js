// Types the date into the native date field, digit by digit from its first part, then submits.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const digits = goal.match(/\d/g);
const field = document.querySelector("#tt");
const box = field.getBoundingClientRect();
if (step === 0)
  return { action: "click_element", element: "month of the date", x: box.x + 10, y: box.y + box.height / 2 };
if (step <= digits.length) return { action: "press_key", key: digits[step - 1] };
return click(document.querySelector("#subbtn"), "Submit");
