// Opens the named sender's mail, answers with the quoted text, sends. Enter would add a line, so the text is typed without it.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const [, sender, text] = goal.match(/^Find the email by (\w+) and reply to them with the text "(.*)"/);
const inSight = (node, element) =>
  middle(node).y < 205 ? click(node, element) : { action: "scroll", direction: "down" };
const field = document.querySelector("#reply-text");
if (field) {
  if (field.value === text) return click(document.querySelector("#send-reply"), "send");
  return document.activeElement === field
    ? { action: "write", content: text, press_enter: false }
    : click(field, "answer field");
}
const reply = document.querySelector("#email .email-reply");
if (reply) return inSight(reply, "Reply");
return inSight(
  [...document.querySelectorAll("#main .email-sender")].find((name) => name.textContent === sender),
  `mail of ${sender}`,
);
