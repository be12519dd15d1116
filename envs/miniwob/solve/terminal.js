// Lists the files, then removes one that fits. The page reads key presses, not the field.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const [, extension] = goal.match(/extension (\.\S+)/) ?? [null, null];
const asked = [...document.querySelectorAll(".terminal-line .command")].some(
  (line) => line.textContent === "ls",
);
if (document.activeElement !== document.querySelector("#terminal-target"))
  return click(document.querySelector("#terminal"), "terminal");
if (!asked) return { action: "write", content: "ls", press_enter: true };
const files = [...document.querySelectorAll(".terminal-output")].at(-1).textContent.trim().split(/\s+/);
const file = files.find((name) => (extension ? name.endsWith(extension) : !name.includes(".")));
return { action: "write", content: `rm ${file}`, press_enter: true };
