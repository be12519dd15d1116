// The bare browser loop in Playwright: the peer of `furrow-bench browser`, which starts it, measures its process tree and reads its lines.
//
//   node playwright_loop.mjs BROWSER URL SESSIONS SECONDS PERIOD_MS BROWSERS STARTS
//
// Every session acts once a period (click, wheel or typing in turn, by its own mouse and keyboard) and takes a JPEG of quality 80.
// Before that, STARTS times, one after the other: a context with an empty page; from a page that was used to an empty one with nothing of that
// left; and on to its start page.
// Prints one JSON object a line: {"started":true,...} with these times, {"ready":true} when all pages stand, {"done":true,...} when the time
// is over; then it waits for the end of its input, so that the tree can be measured while the browsers still stand.
import { finished } from "node:stream/promises";
import { chromium } from "playwright-core";

const [executablePath, url, sessions, seconds, period, browsers, starts] = process.argv.slice(2);
const say = (message) => process.stdout.write(JSON.stringify(message) + "\n");
const now = () => performance.now();

const running = await Promise.all(
  Array.from({ length: +browsers }, () => chromium.launch({ executablePath, args: ["--no-sandbox"] })),
);

const viewport = { width: 1280, height: 720 };
const fresh_ms = [];
const reset_ms = [];
const loaded_ms = [];
if (+starts) {
  const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
  await (await browser.newContext({ viewport })).newPage();
  for (let n = 0; n < +starts; n++) {
    const began = now();
    const context = await browser.newContext({ viewport });
    await context.newPage();
    fresh_ms.push(now() - began);
    await context.close();
  }
  let used = await browser.newContext({ viewport });
  await (await used.newPage()).goto(url);
  for (let n = 0; n < +starts; n++) {
    const began = now();
    const context = await browser.newContext({ viewport });
    const page = await context.newPage();
    reset_ms.push(now() - began);
    await page.goto(url);
    loaded_ms.push(now() - began);
    await used.close();
    used = context;
  }
  await browser.close();
}
say({ started: true, fresh_ms, reset_ms, loaded_ms });

const pages = [];
for (let index = 0; index < +sessions; index++) {
  const context = await running[index % running.length].newContext({ viewport });
  const page = await context.newPage();
  await page.goto(url);
  pages.push(page);
}
say({ ready: true });

const latencies = [];
let bytes = 0;

async function step(page, turn) {
  switch (turn % 3) {
    case 0:
      await page.mouse.click(200 + ((turn * 37) % 800), 150 + ((turn * 53) % 400));
      break;
    case 1:
      await page.mouse.wheel(0, turn % 2 ? 300 : -300);
      break;
    default:
      await page.keyboard.insertText("abc");
  }
  const shot = await page.screenshot({ type: "jpeg", quality: 80 });
  bytes += shot.length;
}

async function session(page, index, end) {
  // Sessions begin spread over one period, as they do when a policy answers them one by one.
  let due = now() + (index / +sessions) * +period;
  for (let turn = index; ; turn++) {
    const pause = due - now();
    if (pause > 0) await new Promise((resolve) => setTimeout(resolve, pause));
    if (now() >= end) return;
    const began = now();
    await step(page, turn);
    latencies.push(now() - began);
    due = Math.max(due + +period, now());
  }
}

const end = now() + +seconds * 1000;
await Promise.all(pages.map((page, index) => session(page, index, end)));
say({
  done: true,
  steps: latencies.length,
  latencies_ms: latencies.map((ms) => Math.round(ms * 10) / 10),
  bytes,
});
await finished(process.stdin.resume());
await Promise.all(running.map((browser) => browser.close()));
