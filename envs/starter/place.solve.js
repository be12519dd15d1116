// Presses the middle of the tile in the named place.
const tile = document.querySelector(`.tile[aria-label="${goal.match(/^Press the ([a-z ]+) tile/)[1]}"]`);
if (!tile) return null;
const box = tile.getBoundingClientRect();
return { action: "click_element", element: "tile", x: box.x + box.width / 2, y: box.y + box.height / 2 };
