// What every demonstration of the offline web begins with. A demonstration reads the page as it is shown and names the next action; it is
// called afresh before every step, so each helper says either what to do next or, with null, that its part is done: chain them with `??`.
const shown = (node) => node.getClientRects().length > 0 && getComputedStyle(node).visibility !== "hidden";
const all = (selector, root = document) => [...root.querySelectorAll(selector)].filter(shown);
const one = (selector, root = document) => all(selector, root)[0] ?? null;
const said = (node) => (node ? node.innerText.trim().replace(/\s+/g, " ") : "");
const named = (selector, text, root = document) =>
  all(selector, root).find((node) => said(node) === text) ?? null;
const starting = (selector, text, root = document) =>
  all(selector, root).find((node) => said(node).startsWith(text)) ?? null;
const quoted = [...goal.matchAll(/"([^"]+)"/g)].map(([, text]) => text);
const amount = (text) => Number(text.replace(/[^\d.-]/g, ""));
const at = (path) => location.pathname === path;

// Notes for later steps; they live as long as the tab.
const memory = JSON.parse(sessionStorage.getItem("solve") ?? "{}");
const keep = (facts) => sessionStorage.setItem("solve", JSON.stringify(Object.assign(memory, facts)));

/** Whether the mouse would hit an element there, and a pixel beside: what a reply can name is rounded, and lines of a link have gaps between them. */
function hits(node, x, y) {
  return [
    [0, 0],
    [1, 0],
    [-1, 0],
    [0, 1],
    [0, -1],
  ].every(([across, down]) => {
    const top = document.elementFromPoint(x + across, y + down);
    return top && (node.contains(top) || top.closest("label")?.contains(node));
  });
}
/** A point of an element that the mouse would really hit, or the scroll that brings it nearer. */
function reach(node) {
  const box = node.getBoundingClientRect();
  for (const [across, down] of [
    [0.5, 0.5],
    [0.5, 0.25],
    [0.5, 0.75],
    [0.2, 0.5],
    [0.8, 0.5],
    [0.1, 0.3],
  ]) {
    const x = box.x + box.width * across,
      y = box.y + box.height * down;
    if (x < 1 || y < 1 || x > innerWidth - 1 || y > innerHeight - 1) continue;
    if (hits(node, x, y)) return { x, y };
  }
  return { scroll: box.y + box.height / 2 > innerHeight / 2 ? "down" : "up" };
}
function press(node, element = said(node) || node?.getAttribute("aria-label") || "button") {
  if (!node) return null;
  const point = reach(node);
  return point.scroll
    ? { action: "scroll", direction: point.scroll }
    : { action: "click_element", element: element.slice(0, 60), ...point };
}
/** Types into a field unless it holds that already. Enter follows, as with every typed entry. */
function write(node, content, element = node.name || "field") {
  if (node.value.trim() === content) return null;
  const point = reach(node);
  return point.scroll
    ? { action: "scroll", direction: point.scroll }
    : { action: "write_element_abs", content, element, ...point };
}
const answer = (content) => ({ action: "answer", content: String(content) });
const key = (name) => ({ action: "press_key", key: name });
const scroll = (direction) => ({ action: "scroll", direction });

/** Chooses in a native list: a press opens it, another falls on the drawn row (24 px each, below a border of 1 px; see envs/README.md). */
function choose(list, text) {
  if (list.selectedOptions[0]?.text === text) return null;
  if (!list.matches(":open")) return press(list, `${list.name || "list"}`);
  const box = list.getBoundingClientRect(),
    row = [...list.options].findIndex((option) => option.text === text);
  const height = list.options.length * 24 + 2;
  const top = box.bottom + height <= innerHeight ? box.bottom + 1 : box.top - height + 1;
  return {
    action: "click_element",
    element: `option ${text}`,
    x: box.x + box.width / 2,
    y: top + (row + 0.5) * 24,
  };
}
/** Chooses in one of the site's own lists. */
function drop(button, text) {
  if (said(button).endsWith(text)) return null;
  const frame = button.closest(".dropdown");
  return press(named("[role=option]", text, frame)) ?? press(button);
}
/** Ticks a box or a radio button by the text of its label. */
function tick(text, root = document, exact = true) {
  const label = all("label", root).find((node) =>
    exact ? said(node) === text : said(node).startsWith(text),
  );
  return label && label.querySelector("input").checked ? null : press(label);
}
/** Picks a day, given as "March 9, 2027", in the calendar of a date field. */
function pickDay(name, day, root = document) {
  const field = one(`input[name="${name}"]`, root).closest(".date-field"),
    input = field.querySelector("input");
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
  const [, month, date, year] = day.match(/(\w+) (\d+), (\d+)/);
  const iso = `${year}-${String(months.indexOf(month) + 1).padStart(2, "0")}-${date.padStart(2, "0")}`;
  if (input.dataset.day === iso) return null;
  if (!one(".calendar", field)) return press(input, `${name} field`);
  const [, shownMonth, shownYear] = said(one(".calendar-head b", field)).match(/(\w+) (\d+)/);
  const away = (Number(year) - Number(shownYear)) * 12 + months.indexOf(month) - months.indexOf(shownMonth);
  if (away) return press(one(`[aria-label="${away > 0 ? "Next" : "Previous"} month"]`, field));
  return press(one(`[data-day="${iso}"]`, field.querySelector(".calendar")));
}
const tab = (id) => {
  const button = one(`[data-tab="${id}"]`);
  return button.getAttribute("aria-selected") === "true" ? null : press(button);
};
/** Writes several fields, by their names. */
const fillIn = (values, root = document) =>
  Object.entries(values).reduce(
    (hint, [name, text]) => hint ?? write(one(`[name="${name}"]`, root), text),
    null,
  );
/** Enters the card that the goal names. */
const fillCard = () => {
  const [, card, holder, expiry, code] = goal.match(
    /card ([\d ]+) in the name of ([^,]+), expiry (\S+), security code (\d+)\./,
  );
  return fillIn({ card, holder, expiry, code });
};
/** What a list of terms says under one of them. */
const fact = (term, root = document) =>
  said(all("dt", root).find((node) => said(node) === term)?.nextElementSibling);
const asked = new URLSearchParams(location.search);

// The page's script has not shown it yet, or a request of the page is under way.
if (
  document.documentElement.classList.contains("waiting") ||
  document.documentElement.classList.contains("busy") ||
  !document.body?.children.length
)
  return null;

// A banner hides what lies under it.
const banner = one(".cookies button");
if (banner) return press(banner);
