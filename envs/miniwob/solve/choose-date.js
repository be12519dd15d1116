// Opens the calendar, turns to the month, presses the day, then submits.
const middle = (node) => {
  const box = node.getBoundingClientRect();
  return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
};
const click = (node, element) => ({ action: "click_element", element, ...middle(node) });

const [, month, day, year] = goal.match(/(\d+)\/(\d+)\/(\d+)/);
const field = document.querySelector("#datepicker");
const calendar = document.querySelector("#ui-datepicker-div");
if (field.value === `${month}/${day}/${year}`) return click(document.querySelector("#subbtn"), "Submit");
if (!calendar.checkVisibility()) return click(field, "date field");
const months = [
  "January",
  "February",
  "March",
  "April",
  "May",
  "June",
  "July",
  "August",
  "September",
  "October",
  "November",
  "December",
];
const shown = months.indexOf(calendar.querySelector(".ui-datepicker-month").textContent) + 1;
if (shown > month) return click(calendar.querySelector(".ui-datepicker-prev"), "previous month");
if (shown < month) return click(calendar.querySelector(".ui-datepicker-next"), "next month");
return click(
  [...calendar.querySelectorAll("td a")].find((link) => link.textContent === String(Number(day))),
  `day ${day}`,
);
