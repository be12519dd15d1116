// Books the flight that is first by the named measure.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const [, most, measure] = goal.match(/the (cheapest|shortest|longest|most expensive) (cost|duration)/);
const size = (flight) =>
  measure === "cost"
    ? Number(flight.querySelector(".buy-ticket").dataset.price)
    : Number(flight.querySelector(".time-duration").dataset.duration);
const flights = [...document.querySelectorAll(".flight")].sort((one, other) => size(one) - size(other));
const flight = ["cheapest", "shortest"].includes(most) ? flights[0] : flights.at(-1);
return click(flight.querySelector(".buy-ticket"), `Book, ${most} ${measure}`);
