// Reads the person's row, keeps it as a note for the second page, and copies it into the badge.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const [, host] = goal.match(/^Look up (.+) in the staff list/);
const row = [...document.querySelectorAll("tr")].find(({ cells }) => cells[0].textContent === host);
if (row) {
  const [, , extension, room] = [...row.cells].map((cell) => cell.textContent);
  sessionStorage.setItem("solve", JSON.stringify({ extension, room }));
  return { action: "click_element", element: "New badge", ...middle(document.querySelector("#badge")) };
}
const noted = JSON.parse(sessionStorage.getItem("solve"));
const inputs = [...document.querySelectorAll("input")];
if (!inputs.length) return null;
if (!noted) return { action: "go_back" };
const empty = inputs.find((input) => input.value !== noted[input.name]);
if (empty)
  return {
    action: "write_element_abs",
    content: noted[empty.name],
    element: `${empty.name} field`,
    ...middle(empty),
  };
return { action: "click_element", element: "Print button", ...middle(document.querySelector("#print")) };
