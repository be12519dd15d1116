// Presses the button called ONE.
// TWO may lie over a part of ONE: aim where nothing covers the button.
const press = (button) => {
  const box = button.getBoundingClientRect();
  for (const down of [0.5, 0.15, 0.85]) {
    for (const right of [0.5, 0.15, 0.85]) {
      const [x, y] = [box.x + right * box.width, box.y + down * box.height];
      if (document.elementFromPoint(x, y) === button)
        return { action: "click_element", element: `button ${button.textContent}`, x, y };
    }
  }
  return null;
};
return press(document.querySelector("#subbtn"));
