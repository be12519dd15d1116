// What a page hears of Playwright's keyboard and mouse: the peer of crates/env/tests/browser/input_events.rs.
//
//   node tests/peers/playwright_input.mjs BROWSER > crates/env/tests/browser/input_events/playwright.json
//
// Every case is done on a fresh copy of one page, which writes down its events.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const html = readFileSync(
  new URL("../../crates/env/tests/browser/input_events/page.html", import.meta.url),
  "utf8",
);
const browser = await chromium.launch({ executablePath: process.argv[2], args: ["--no-sandbox"] });

const inField = async ({ mouse }) => mouse.click(100, 25);
const press = (key) => async (page) => {
  await inField(page);
  await page.keyboard.press(key);
};
const onPad = (button, clickCount) => (page) => page.mouse.click(60, 300, { button, clickCount });
const during = async ({ keyboard }, keys, act) => {
  for (const key of keys) await keyboard.down(key);
  await act();
  for (const key of keys.toReversed()) await keyboard.up(key);
};

const CASES = {
  "press Shift+A": press("Shift+A"),
  "press Shift+a": press("Shift+a"),
  "press Shift+1": press("Shift+1"),
  "press Control+a": press("Control+a"),
  "press Control+Shift+ArrowRight": press("Control+Shift+ArrowRight"),
  "press Alt+Shift+ArrowLeft": press("Alt+Shift+ArrowLeft"),
  "press Shift": press("Shift"),
  "press ControlRight": press("ControlRight"),
  "press Meta+b": press("Meta+b"),
  "press Enter": press("Enter"),
  "press Tab": press("Tab"),
  "press Backspace": press("Backspace"),
  "press F2": press("F2"),
  "press NumpadAdd": press("NumpadAdd"),
  "press A": press("A"),
  "type composed characters": async (page) => {
    await inField(page);
    await page.keyboard.type("aB é ñ 日本!");
  },
  "type lines": async ({ mouse, keyboard }) => {
    await mouse.click(100, 90);
    await keyboard.type("a\nb");
  },
  "write into a field": async (page) => {
    await inField(page);
    await page.keyboard.press("Control+a");
    await page.keyboard.type("new");
    await page.keyboard.press("Enter");
  },
  hover: ({ mouse }) => mouse.move(300, 25),
  click: onPad("left", 1),
  "double click": onPad("left", 2),
  "triple click": onPad("left", 3),
  "right click": onPad("right", 1),
  "middle click": onPad("middle", 1),
  "Control click": (page) => during(page, ["Control"], () => onPad("left", 1)(page)),
  "Control+Shift click": (page) => during(page, ["Control", "Shift"], () => onPad("left", 1)(page)),
  "Shift hover": (page) => during(page, ["Shift"], () => page.mouse.move(300, 25)),
  wheel: async ({ mouse }) => {
    await mouse.move(100, 200);
    await mouse.wheel(0, 150);
  },
  "Shift wheel": async (page) => {
    await page.mouse.move(100, 200);
    await during(page, ["Shift"], () => page.mouse.wheel(0, 150));
  },
  drag: async ({ mouse }) => {
    await mouse.move(40, 300);
    await mouse.down();
    await mouse.move(100, 360, { steps: 6 });
    await mouse.up();
  },
  "drag what the page drags": async ({ mouse }) => {
    await mouse.move(270, 80);
    await mouse.down();
    await mouse.move(300, 200, { steps: 6 });
    await mouse.up();
  },
  "button held over other actions": async ({ mouse, keyboard }) => {
    await mouse.move(40, 300);
    await mouse.down();
    await mouse.move(100, 360, { steps: 6 });
    await keyboard.press("x");
    await mouse.move(160, 300, { steps: 6 });
    await mouse.up();
  },
  "two buttons": async ({ mouse }) => {
    await mouse.move(40, 300);
    await mouse.down();
    await mouse.down({ button: "right" });
    await mouse.up({ button: "right" });
    await mouse.up();
  },
  "key held over other actions": async (page) => {
    await inField(page);
    await page.keyboard.down("Shift");
    await page.keyboard.press("a");
    await page.keyboard.press("ArrowLeft");
    await page.mouse.move(60, 300);
    await page.mouse.click(60, 300);
    await page.mouse.wheel(0, 90);
    await page.keyboard.up("Shift");
  },
  "two keys held": async (page) => {
    await inField(page);
    await page.keyboard.down("w");
    await page.keyboard.down("d");
    await page.keyboard.up("w");
    await page.keyboard.up("d");
  },
  "key pressed twice": async (page) => {
    await inField(page);
    await page.keyboard.down("w");
    await page.keyboard.down("w");
    await page.keyboard.up("w");
  },
};

const cases = {};
for (const [name, act] of Object.entries(CASES)) {
  const context = await browser.newContext({ viewport: { width: 512, height: 512 } });
  await context.route("**/*", (route) => route.fulfill({ contentType: "text/html", body: html }));
  const page = await context.newPage();
  await page.goto("http://page.test/");
  await act(page);
  // A wheel event arrives after its command is answered.
  await page.waitForTimeout(200);
  cases[name] = await page.evaluate("events");
  await context.close();
}
const { version } = createRequire(import.meta.url)("playwright-core/package.json");
const lines = Object.entries(cases).map(
  ([name, events]) =>
    `    ${JSON.stringify(name)}: [${events.map((event) => `\n      ${JSON.stringify(event)}`).join(",")}\n    ]`,
);
console.log(
  `{\n  "playwright": "${version}",\n  "chromium": "${browser.version()}",\n  "cases": {\n${lines.join(",\n")}\n  }\n}`,
);
await browser.close();
