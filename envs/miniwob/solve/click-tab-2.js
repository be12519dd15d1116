// Opens the tab that holds the quoted link, then presses the link.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const [, text] = goal.match(/link "(.*)"/);
const link = [...document.querySelectorAll(".alink")].find((one) => one.textContent === text);
if (link.checkVisibility()) return click(link, `link ${text}`);
const panel = link.closest("#area > div");
return click(document.querySelector(`#area a[href="#${panel.id}"]`), `tab of ${panel.id}`);
