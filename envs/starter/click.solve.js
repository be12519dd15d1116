// Presses Add on the card the goal describes by size or by price.
const [, size, sized, priced, price] = goal.match(
  /^Add the (?:(small|medium|large) (\w+) plant|(\w+) plant that costs ([\d.]+)) to/,
);
const card = [...document.querySelectorAll(".plant")].find((plant) => {
  const words = [...plant.querySelectorAll("b, span")].map((part) => part.textContent);
  return words.includes(sized ?? priced) && words.includes(size ?? price);
});
if (!card) return null;
const box = card.querySelector("button").getBoundingClientRect();
return {
  action: "click_element",
  element: `Add, ${sized ?? priced}`,
  x: box.x + box.width / 2,
  y: box.y + box.height / 2,
};
