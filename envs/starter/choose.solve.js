// Ticks each quoted option that is not ticked yet, then continues.
const click = (node, element) => {
  const box = node.getBoundingClientRect();
  return { action: "click_element", element, x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const radios = [...document.querySelectorAll("input[type=radio]")];
if (!radios.length) return null;
for (const [, value, name] of goal.matchAll(/"([^"]+)" as (\w+)/g)) {
  const radio = radios.find((one) => one.value === value && one.name.toLowerCase() === name);
  if (!radio.checked) return click(radio.closest("label"), `option ${value}`);
}
return click(document.querySelector("#continue"), "Continue button");
