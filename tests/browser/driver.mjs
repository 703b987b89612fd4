// Drives Chromium for the tests: a command per line of JSON comes in, an answer per line goes out.
// `node driver.mjs /usr/bin/chromium 1200`: the browser, and the seconds after which something hangs.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const require = createRequire(new URL("../../viewer/package.json", import.meta.url));
const { chromium } = require("playwright-core");

const browser = await chromium.launch({
  executablePath: process.argv[2],
  args: [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
  ],
});
const patience = Number(process.argv[3]) * 1000;
let context = null;
let page = null;
let problems = [];
let requests = [];

const commands = {
  /** Open a file in a new page; what it loads and complains about is kept. */
  async open({ url, theme = "light", width = 1400, height = 900 }) {
    await context?.close();
    context = await browser.newContext({ viewport: { width, height }, colorScheme: theme });
    context.setDefaultTimeout(patience);
    page = await context.newPage();
    problems = [];
    requests = [];
    page.on("console", (message) => problems.push(`${message.type()}: ${message.text()}`));
    page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
    context.on("request", (request) => requests.push(request.url()));
    await page.goto(url);
  },
  reload: () => { requests = []; return page.reload(); },
  evaluate: ({ code, frame }) => where(frame).evaluate(code),
  /** Wait until something is true. The page's own policy forbids the usual way, which is to poll inside it. */
  async until({ code, frame }) {
    for (const begun = Date.now(); Date.now() - begun < patience;) {
      if (await where(frame)?.evaluate(code)) return;
      await new Promise((done) => setTimeout(done, 50));
    }
    throw new Error(`still not so; there is ${JSON.stringify(await where(frame)?.evaluate("document.body.innerText.slice(0, 300)"))}`);
  },
  click: ({ selector, frame, options = {} }) => where(frame).click(selector, options),
  dblclick: ({ selector }) => page.dblclick(selector),
  press: ({ key }) => page.keyboard.press(key),
  type: ({ text }) => page.keyboard.type(text),
  wheel: async ({ selector, x = 0, y = 0 }) => { await page.hover(selector); await page.mouse.wheel(x, y); },
  /** Press the button at the first of some places, go along the others, let it go at the last. */
  async drag({ points }) {
    await page.mouse.move(...points[0]);
    await page.mouse.down();
    for (const point of points.slice(1)) await page.mouse.move(...point);
    await page.mouse.up();
  },
  async download({ selector }) {
    const [file] = await Promise.all([page.waitForEvent("download"), page.click(selector)]);
    return [file.suggestedFilename(), await file.path()];
  },
  async drag_in({ selector, start, end }) {
    const { x, y } = await page.locator(selector).first().boundingBox();
    await page.mouse.move(x + start[0], y + start[1]);
    await page.mouse.down();
    await page.mouse.move(x + end[0], y + end[1], { steps: 8 });
    await page.mouse.up();
  },
  hover: ({ selector, options = {} }) => page.hover(selector, options),
  media: ({ media }) => page.emulateMedia({ media }),
  pdf: async ({ path }) => { await page.pdf({ path, format: "A4" }); },
  resize: ({ width, height }) => page.setViewportSize({ width, height }),
  screenshot: async ({ path }) => { await page.screenshot({ path }); },
  heard: () => ({ problems, requests }),
};

function where(frame) {
  return frame ? page.frames()[1] : page;
}

for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...given } = JSON.parse(line);
  let answer;
  try {
    answer = { value: (await commands[command](given)) ?? null };
  } catch (error) {
    answer = { error: String(error) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
await browser.close();
