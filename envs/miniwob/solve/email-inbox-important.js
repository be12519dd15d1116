// Presses the star beside the named sender's mail.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const [, sender] = goal.match(/^Find the email by (\w+) and/);
const thread = [...document.querySelectorAll("#main .email-thread")].find(
  (one) => one.querySelector(".email-sender").textContent === sender,
);
const star = thread.querySelector(".star");
return middle(star).y < 205 ? click(star, "star") : { action: "scroll", direction: "down" };
