// Takes the pictures of this folder: every page of a dashboard as it stands, in light and in dark.
//
//   node docs/dashboard/pictures.mjs http://127.0.0.1:7380 [PAGE ...]
//
// FURROW_BROWSER names a Chromium headless shell, unless Debian's is there. Needs `npm install` in tests/peers once.
import { writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

const { chromium } = createRequire(new URL("../../tests/peers/package.json", import.meta.url))(
  "playwright-core",
);
const [dashboard, ...only] = process.argv.slice(2);
if (!dashboard) throw new Error("name the address of a dashboard");
const folder = fileURLToPath(new URL(".", import.meta.url));
const ask = async (path) => (await fetch(dashboard + path)).json();

// The trajectory that is shown: the longest that solved its task.
const { rows } = await ask("/api/trajectories?limit=1&sort=num_steps&order=desc&success=yes");
// Of each page: its address, and what is there when it is drawn.
const PAGES = {
  overview: ["/", ".tiles .value, .running"],
  sessions: ["/sessions", ".session img"],
  trajectories: ["/trajectories", ".grid-rows .grid-row"],
  trajectory: [rows.length > 0 ? `/trajectory/${rows[0].trajectory_id}#step=2` : null, "article img"],
  learning: ["/learning", ".tiles .value"],
  job: ["/job", ".facts"],
};

// Playwright writes PNG and JPEG only; WebP is a third of the bytes.
async function webp(page) {
  const session = await page.context().newCDPSession(page);
  const { data } = await session.send("Page.captureScreenshot", { format: "webp", quality: 90 });
  return Buffer.from(data, "base64");
}

const browser = await chromium.launch({
  executablePath: process.env.FURROW_BROWSER ?? "/usr/lib/chromium/chromium-headless-shell",
  args: ["--no-sandbox"],
});
for (const [name, [path, drawn]] of Object.entries(PAGES)) {
  if (path === null || (only.length > 0 && !only.includes(name))) continue;
  for (const colorScheme of ["light", "dark"]) {
    const page = await browser.newPage({ viewport: { width: 1280, height: 860 }, colorScheme });
    await page.goto(dashboard + path);
    await page.waitForSelector(drawn);
    // What a page asks for after its first answer: screenshots of tiles and steps.
    await page.waitForTimeout(5000);
    const file = `${name}-${colorScheme}.webp`;
    await writeFile(folder + file, await webp(page));
    console.log(file);
    await page.close();
  }
}
await browser.close();
