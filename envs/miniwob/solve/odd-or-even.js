// Marks the first number that is not marked right, then submits.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

for (const row of document.querySelectorAll("#numbers .row")) {
  const number = Number(row.querySelector(".display-number").textContent);
  const button = row.querySelector(number % 2 === 0 ? ".even" : ".odd");
  if (!button.classList.contains("selected")) return click(button, `${button.textContent} for ${number}`);
}
return click(document.querySelector("#submit"), "Submit");
