// Presses the plus of what is asked for, by name or by the label of its pictures, then orders. The list is moved with keys: a turn of the wheel
// goes further than it shows.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const items = [...document.querySelectorAll(".food-item")];
const name = (item) => item.querySelector(".item-name").textContent.trim();
const has = (item, type) => [...item.querySelectorAll(".types img")].some((picture) => picture.alt === type);
const [, count, type] = goal.match(/^Order (\d+) items that are ([\w-]+)/) ?? [];
const named = goal
  .replace(/^[^:]*: /, "")
  .split(", ")
  .map((one) => one.trim());
const wanted = type
  ? [{ item: items.find((item) => has(item, type)), times: Number(count) }]
  : named.map((one) => ({ item: items.find((item) => name(item) === one), times: 1 }));
const lacking = wanted.find(({ item, times }) => Number(item.querySelector(".quantity").textContent) < times);
const target = lacking ? lacking.item.querySelector(".add") : document.querySelector("#submit-order button");

const area = document.querySelector("#area").getBoundingClientRect();
const { y } = middle(target);
if (y > area.top + 8 && y < area.bottom - 8)
  return click(target, lacking ? `plus of ${name(lacking.item)}` : "Order!");
// Keys go to the list once something in it was pressed.
const shown = items
  .map((item) => item.querySelector(".item-name"))
  .find((node) => middle(node).y > area.top + 4 && middle(node).y < area.bottom - 4);
if (step === 0) return click(shown, "the list");
const far = Math.abs(y - (area.top + area.bottom) / 2) > area.height;
const down = y > area.bottom - 8;
return { action: "press_key", key: down ? (far ? "PageDown" : "ArrowDown") : far ? "PageUp" : "ArrowUp" };
