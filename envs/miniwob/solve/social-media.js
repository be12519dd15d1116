// Brings the named user's post into sight a page at a time, then presses the named button; most of them are in the post's menu.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const [, user, action] = goal.match(/^For the user (.*), click on the "(.*)" button/);
const area = document.querySelector("#area").getBoundingClientRect();
const inSight = (node) => middle(node).y > area.top + 3 && middle(node).y < Math.min(area.bottom, 210) - 3;
const post = [...document.querySelectorAll(".media")].find(
  (one) => one.querySelector(".username").textContent === user,
);
const icon = { Reply: ".reply", Retweet: ".retweet", Like: ".like" }[action];
const item = [...post.querySelectorAll("ul li")].find((one) => one.textContent.startsWith(action));
const next = post.querySelector(icon ?? (item.checkVisibility() ? "ul" : ".more"));
const target = next.tagName === "UL" ? item : next;
if (inSight(target)) return click(target, action);

// A press on a post's text does nothing but lets keys scroll the list.
const text = [...document.querySelectorAll(".media .body")].find(inSight);
if (step === 0)
  return {
    action: "click_element",
    element: "text of a post",
    x: text.getBoundingClientRect().x + 5,
    y: middle(text).y,
  };
return { action: "press_key", key: middle(target).y > area.top ? "PageDown" : "PageUp" };
