// Follows the department and the product, then reserves at the branch; leaves a wrong page by going back.
const click = (node, element) => {
  const box = node.getBoundingClientRect();
  return { action: "click_element", element, x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const [, department, product, branch] = goal.match(
  /^In the (\w+) department, find the (.+) and reserve it at the (.+)\.$/,
);
const title = document.querySelector("h1")?.textContent;
const tile = (name) =>
  [...document.querySelectorAll(".tile")].find((one) => one.querySelector("b").textContent === name);
if (!title) return null;
if (title === "Departments") return click(tile(department), `${department} tile`);
if (title === department) return click(tile(product), `${product} tile`);
const place = [...document.querySelectorAll("tr")].find((one) => one.cells[0].textContent === branch);
return title === product && place
  ? click(place.querySelector("button"), `Reserve at ${branch}`)
  : { action: "go_back" };
