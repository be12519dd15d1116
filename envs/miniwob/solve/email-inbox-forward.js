// Opens the named sender's mail, forwards it to the named person. Enter would do nothing, so the name is typed without it.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });
const inSight = (node, element) =>
  middle(node).y < 205 ? click(node, element) : { action: "scroll", direction: "down" };

const [, sender, to] = goal.match(/^Find the email by (\w+) and forward that email to (\w+)/);
const field = document.querySelector("#forward .forward-sender");
if (field) {
  if (field.value === to) return click(document.querySelector("#send-forward"), "send");
  return document.activeElement === field
    ? { action: "write", content: to, press_enter: false }
    : click(field, "to");
}
const forward = document.querySelector("#email .email-forward");
if (forward) return inSight(forward, "Forward");
return inSight(
  [...document.querySelectorAll("#main .email-sender")].find((name) => name.textContent === sender),
  `mail of ${sender}`,
);
