// One of four things with the named sender's mail: star it, bin it, answer it, forward it. Texts are typed without Enter. The list is moved with
// keys, which go to it once its header was pressed: a turn of the wheel goes further than it shows.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });
const inSight = (node, element) => {
  const { x, y } = middle(node);
  if (y < 205 && node.contains(document.elementFromPoint(x, y))) return click(node, element);
  const header = document.querySelector("#main:not(.hide) h2");
  if (!header) return { action: "scroll", direction: "down" };
  if (step === 0) return click(header, "Primary");
  return { action: "press_key", key: y < 60 ? "ArrowUp" : "ArrowDown" };
};

const [, sender] = goal.match(/^Find the email by (\w+)/);
const [, text] = goal.match(/reply to them with the text "(.*)"/) ?? [];
const [, to] = goal.match(/forward that email to (\w+)/) ?? [];
const write = (field, content, send) => {
  if (field.value === content) return click(document.querySelector(send), "send");
  return document.activeElement === field
    ? { action: "write", content, press_enter: false }
    : click(field, "field");
};
const reply = document.querySelector("#reply-text");
if (reply) return write(reply, text, "#send-reply");
const receiver = document.querySelector("#forward .forward-sender");
if (receiver) return write(receiver, to, "#send-forward");
const open = document.querySelector(text ? "#email .email-reply" : "#email .email-forward");
if (open) return inSight(open, text ? "Reply" : "Forward");
const thread = [...document.querySelectorAll("#main .email-thread")].find(
  (one) => one.querySelector(".email-sender").textContent === sender,
);
if (text || to) return inSight(thread.querySelector(".email-sender"), `mail of ${sender}`);
return inSight(
  thread.querySelector(goal.includes("trash") ? ".trash" : ".star"),
  goal.includes("trash") ? "bin" : "star",
);
