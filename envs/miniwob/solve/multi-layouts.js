// Fills in genre, director and year wherever they stand, then searches.
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

const [, genre, director, year] = goal.match(/^Search for (.*) movies directed by (.*) from year (\d+)/);
const named = [
  [/genre/i, genre],
  [/director/i, director],
  [/year|date/i, year],
];
for (const field of document.querySelectorAll("#area input")) {
  const row = field.closest(".field, .ui-entry, .row, tr, p");
  const [, text] = named.find(([name]) => name.test(row.textContent));
  if (field.value !== text) return write(field, text, row.textContent.trim());
}
return click(document.querySelector("#area button, #area .final, #area .ui-submit"), "search button");
