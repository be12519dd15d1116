// Types the beginning, then takes the fitting item of the list that opens, then submits.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });
const write = (node, content, element) => ({
  action: "write_element_abs",
  content,
  element,
  ...middle(node),
});

const [, start, end = ""] = goal.match(/starts with "(.*?)"(?: and ends with "(.*)")?/);
const fits = (text) => text.startsWith(start) && text.endsWith(end);
const field = document.querySelector("#tags");
const item = [...document.querySelectorAll(".ui-menu-item")].find(
  (one) => one.checkVisibility() && fits(one.textContent),
);
if (item) {
  const box = item.getBoundingClientRect();
  return box.bottom < 208
    ? click(item, `item ${item.textContent}`)
    : write(field, item.textContent, "Tags field");
}
const chosen = fits(field.value) && field.value.length > start.length;
return chosen ? click(document.querySelector("#subbtn"), "Submit") : write(field, start, "Tags field");
