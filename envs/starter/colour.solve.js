// Presses the middle of the tile whose strongest parts are those of the named colour.
const strong = { red: "100", green: "010", blue: "001", yellow: "110" }[
  goal.match(/^Press the (\w+) tile/)[1]
];
const parts = (tile) => getComputedStyle(tile).backgroundColor.match(/\d+/g).map(Number);
const looks = (tile) => {
  const [red, green, blue] = parts(tile);
  const most = Math.max(red, green, blue);
  return [red, green, blue].map((part) => (part > 0.75 * most ? 1 : 0)).join("");
};
const tile = [...document.querySelectorAll(".tile")].find((one) => looks(one) === strong);
if (!tile) return null;
const box = tile.getBoundingClientRect();
return { action: "click_element", element: "tile", x: box.x + box.width / 2, y: box.y + box.height / 2 };
