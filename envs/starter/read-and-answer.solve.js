// Finds the one row that has everything the question names, and answers with the column it asks for.
const rows = [...document.querySelectorAll("#board tr")].slice(1).map(({ cells }) => {
  const [time, to, train, platform] = [...cells].map((cell) => cell.textContent);
  return { time, to, train, platform };
});
const questions = [
  ["From which platform", "platform", ["time", "to"]],
  ["At what time", "time", ["train"]],
  ["Where", "to", ["train"]],
  ["Which train", "train", ["time", "to"]],
];
const [, asked, given] = questions.find(([start]) => goal.startsWith(start));
const row = rows.find((one) => given.every((column) => goal.includes(one[column])));
return row ? { action: "answer", content: row[asked] } : null;
