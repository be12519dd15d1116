// Types the quoted words into the named field; writing ends with Enter, which searches.
const [, content, label] = goal.match(/^Type "(.*)" into the (\w+) field/);
const field = [...document.querySelectorAll("label.field")].find(
  (one) => one.querySelector("span").textContent === label,
);
if (!field) return null;
const box = field.querySelector("input").getBoundingClientRect();
return {
  action: "write_element_abs",
  content,
  element: `${label} field`,
  x: box.x + box.width / 2,
  y: box.y + box.height / 2,
};
