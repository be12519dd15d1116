// Fills in what differs from the goal, one thing a step, then reserves.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });
const [, seats, title, day, name, phone, letter] = goal.match(
  /^Reserve (\d) seats in the class "([^"]+)" on (\w+) for (.+), phone ([\d ]+), (with|without) the newsletter/,
);
const part = (of) => document.querySelector(`[name=${of}]`);
if (!part("name")) return null;

for (const [key, content] of [
  ["name", name],
  ["phone", phone],
]) {
  if (part(key).value !== content)
    return { action: "write_element_abs", content, element: `${key} field`, ...middle(part(key)) };
}

// The open list is drawn below: a border of 1 px, then rows of 24 px (see envs/README.md).
const list = part("class");
if (list.value !== title) {
  if (!list.matches(":open")) return click(list, "class list");
  const row = [...list.options].findIndex((option) => option.text === title);
  return {
    action: "click_element",
    element: `option ${title}`,
    x: middle(list).x,
    y: list.getBoundingClientRect().bottom + 1 + (row + 0.5) * 24,
  };
}

const pick = [...document.querySelectorAll("[name=day]")].find((radio) => radio.value === day);
if (!pick.checked) return click(pick.closest("label"), day);

const [fewer, more] = document.querySelectorAll(".stepper button");
const lacking = Number(seats) - Number(part("seats").textContent);
if (lacking !== 0) return lacking > 0 ? click(more, "one seat more") : click(fewer, "one seat fewer");

if (part("letter").checked !== (letter === "with")) return click(part("letter"), "newsletter");
return click(document.querySelector("#reserve"), "Reserve button");
