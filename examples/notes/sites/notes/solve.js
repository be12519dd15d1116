// The demonstration: called before every step, returns the next action. envs/README.md lists the forms.
if (document.querySelector("li")) return { action: "answer", content: "done" };
const box = document.querySelector("input").getBoundingClientRect();
const at = { x: box.x + box.width / 2, y: box.y + box.height / 2 };
return { action: "write_element_abs", element: "A note", content: goal.match(/"([^"]+)"/)[1], press_enter: true, ...at };
