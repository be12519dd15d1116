// Pays with the card's number and with another name and code.
// tasks: shop-checkout
// reward: 0
// end: answered
// trace: "orders":[{
const [, holder, , code] = goal.match(/in the name of ([^,]+), expiry (\S+), security code (\d+)\./);
const wrong = { holder: "Nobody Atall", code: code === "417" ? "418" : "417" };
const right = { holder, code };
const fields = all("input").filter((field) => field.name in wrong);
const filled = fields.filter((field) => field.value === wrong[field.name]);
// What is already wrong counts as filled in, so that the demonstration goes on.
for (const field of filled) field.value = right[field.name];
const next = demonstrate();
for (const field of filled) field.value = wrong[field.name];
if (next?.action !== "write_element_abs") return next;
// The buyer may have the same name.
return next.element in wrong ? { ...next, content: wrong[next.element] } : next;
