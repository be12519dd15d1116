// Ticks the named option, then submits.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const [, name] = goal.match(/^Select (.*) and click Submit/);
const radio = [...document.querySelectorAll("#area label")]
  .find((label) => label.textContent === name)
  .querySelector("input");
return radio.checked ? click(document.querySelector("#subbtn"), "Submit") : click(radio, `option ${name}`);
