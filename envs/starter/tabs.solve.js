// List tab: open the invoice, later finish. Invoice tab: decide, then return to the list. The list says which of the two it is.
const click = (node, element) => {
  const box = node.getBoundingClientRect();
  return { action: "click_element", element, x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const [, supplier, total, decision] = goal.match(
  /^Open the invoice of (.+) over ([\d.]+)\. It opens in a new tab: (\w+) it there/,
);
const title = document.querySelector("h1")?.textContent;
if (!title) return null;
if (title !== "Open invoices") {
  const press = [...document.querySelectorAll("#decision button")].find(
    (one) => one.textContent.toLowerCase() === decision,
  );
  return press.disabled ? { action: "select_tab", index: 0 } : click(press, `${press.textContent} button`);
}
const invoice = [...document.querySelectorAll("tr")].find(
  ({ cells }) => cells[1].textContent === supplier && cells[2].textContent === total,
);
const state = invoice.querySelector(".state").textContent;
if (state === "new") return click(invoice.querySelector("a"), `Open, ${supplier} ${total}`);
if (state === "in a tab") return { action: "select_tab", index: 1 };
return click(document.querySelector("#finish"), "Finish button");
