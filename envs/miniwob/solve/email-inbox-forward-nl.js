// As email-inbox-forward, with the two names told in many ways: the sender stands behind "by" or "from", or before "sent", "wants his" and "email".
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });
const inSight = (node, element) =>
  middle(node).y < 205 ? click(node, element) : { action: "scroll", direction: "down" };

const sender =
  goal.match(/(?:by|from) ([A-Z]\w+)/)?.[1] ?? goal.match(/([A-Z]\w+) (?:sent|wants his|email)/)[1];
const verbs = /^(?:Find|Locate|Look|Forward|Send|Go|Please|The|Give|Navigate|Search|Get|It)$/;
const to = goal.match(/\b[A-Z]\w+/g).find((word) => word !== sender && !verbs.test(word));
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
