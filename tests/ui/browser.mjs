// A real Chromium for the tests of this file's neighbours: one browser, one page per test, and what it must never do.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, afterEach, before } from "node:test";

const { PAGE, NODE_FOLDER } = process.env;
const { chromium } = createRequire(join(NODE_FOLDER, "package.json"))("playwright-core");
const QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
/** How long to wait for what must come: a machine with other work on it needs more than half a minute for a view. */
const PATIENCE_MS = 120_000;

/** The page of the test that runs, and its browsing context. */
export let page, context;
let browser, complaints, elsewhere;

before(async () => { browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: QUIET }); });
after(async () => { await browser.close(); });
afterEach(async () => {
  const hacked = await page.evaluate(() => window.hacked); // what a hostile text would set, see hostile.py
  await context.close();
  assert.equal(hacked, undefined, "a text ran");
  assert.deepEqual(complaints, [], "the browser complained");
  assert.deepEqual(elsewhere, [], "the page asked somebody else");
});

/** Open a view and wait until it is drawn. */
export async function open(hash = "#/", { address = PAGE, tolerated = null, ...options } = {}) {
  context = await browser.newContext({ viewport: { width: 1360, height: 900 }, ...options });
  context.setDefaultTimeout(PATIENCE_MS);
  page = await context.newPage();
  complaints = [], elsewhere = [];
  page.on("console", (message) => message.type() === "error" && !tolerated?.test(message.text()) && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(error.message));
  const site = new URL(address).origin + "/";
  page.on("request", (request) => request.url().startsWith(site) || request.url().startsWith("data:") || elsewhere.push(request.url()));
  if (address !== site) await page.goto(address);  // it brings the token, which this origin keeps
  await page.goto(new URL(hash, site).href);
  await drawn();
}

export const drawn = () => page.waitForSelector('main[aria-busy="false"]');
export const card = (name) => page.locator(`[data-card="${name}"]`);
export const text = async (name) => (await card(name).innerText()).replace(/\s+/g, " ");
