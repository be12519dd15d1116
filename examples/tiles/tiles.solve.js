// The demonstration: returns the next action, or null if there is none. `goal` holds the instruction.
const tiles = [...document.querySelectorAll("button")];
const grey = (tile) => Number(tile.style.background.match(/\d+/)[0]);
const [lighter] = tiles.sort((one, other) => grey(other) - grey(one));
if (!lighter) return null;
const box = lighter.getBoundingClientRect();
return {
  action: "click_element",
  element: lighter.getAttribute("aria-label"),
  x: box.x + box.width / 2,
  y: box.y + box.height / 2,
};
