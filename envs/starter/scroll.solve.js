// Scrolls until the wanted section's button can be hit, then presses it.
const [, name] = goal.match(/section "([^"]+)"/);
const section = [...document.querySelectorAll(".bird")].find(
  (bird) => bird.querySelector("h2").textContent === name,
);
if (!section) return null;
const box = section.querySelector("button").getBoundingClientRect();
const top = Math.max(box.top, 0);
const bottom = Math.min(box.bottom, innerHeight);
if (bottom - top < 10) return { action: "scroll", direction: box.top < 0 ? "up" : "down" };
return {
  action: "click_element",
  element: `Bookmark button of ${name}`,
  x: box.x + box.width / 2,
  y: (top + bottom) / 2,
};
