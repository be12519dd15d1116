// Takes the named card to the middle of the named column.
const [, title, name] = goal.match(/card "([^"]+)" into the column "([^"]+)"/);
const card = [...document.querySelectorAll(".card")].find((one) => one.firstChild.textContent === title);
const column = [...document.querySelectorAll(".column")].find((one) => one.dataset.name === name);
if (!card || !column) return null;
const [from, to] = [card, column].map((node) => node.getBoundingClientRect());
return {
  action: "drag",
  element: `card ${title}`,
  x: from.x + from.width / 2,
  y: from.y + from.height / 2,
  to_x: to.x + to.width / 2,
  to_y: to.y + to.height / 2,
};
