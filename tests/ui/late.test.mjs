// What the page does with answers that come late, fail once or fall behind, and with several tabs and runs, in a real Chromium.

import assert from "node:assert/strict";
import { test } from "node:test";

import { card, context, drawn, open, page, text } from "./browser.mjs";

const { BROKEN } = process.env;
const go = (hash) => page.evaluate((to) => { location.hash = to; }, hash);
const searchOf = (values, view = "queue") => `#/${view}/${encodeURIComponent(new URLSearchParams(values))}`;
const waitForText = (name, pattern) => page.waitForFunction(([place, source]) => new RegExp(source).test(document.querySelector(`[data-card="${place}"]`)?.innerText), [name, pattern]);
const waitForTitle = (words) => page.waitForFunction((title) => document.querySelector("h1")?.textContent === title && document.querySelector("main").getAttribute("aria-busy") === "false", words);

/** Answer the first question at these addresses with an error. */
async function failOnce(addresses) {
  let isFirst = true;
  await page.route(addresses, async (route) => {
    if (!isFirst) return route.continue();
    isFirst = false;
    await route.fulfill({ status: 503, body: '{"error": "ClickHouse is away"}' });
  });
}

test("a search that answers late puts none of its cases into the one that was opened after it", async () => {
  await open("#/find/");
  let release;
  const released = new Promise((resolve) => { release = resolve; });
  await page.route(/find_episodes.*no_signal/, async (route) => { await released; await route.continue(); });
  await go(searchOf({ fate: "dropped", reason: "no_signal" }));
  await go(searchOf({ fate: "dropped", reason: "stale" }));
  await waitForText("queue", "1 of 189");
  const late = page.waitForResponse(/find_episodes.*no_signal/);
  release();
  await (await late).finished();
  await page.keyboard.press("j");
  await waitForText("queue", "2 of 189");
  assert.match(await text("case"), /dropped: stale/);
});

test("a search that found no ClickHouse is asked again when there is one", async () => {
  await open("#/find/", { tolerated: /503/ });
  await failOnce(/find_episodes/);
  await go(searchOf({ fate: "trained" }));
  await page.getByText("ClickHouse is away").waitFor();
  await page.evaluate(() => dispatchEvent(new Event("rollbus:again")));
  await card("queue").waitFor();
});

test("what a reason means is asked again after it had no answer", async () => {
  await open(searchOf({ fate: "dropped", reason: "stale" }, "find"), { tolerated: /503/ });
  await failOnce(/api\/reasons/);
  await card("found").locator("td.id a").first().click();
  await waitForText("case", "it was dropped as stale");
  await page.evaluate(() => dispatchEvent(new Event("rollbus:again")));
  await waitForText("case", "dropped: stale, in trainer: it (?!was dropped as)");
});

test("the way back leads to the run that was looked at, and the way on to the other", async () => {
  await open("#/", { address: BROKEN });
  await go("#/step/3");
  await waitForTitle("Step 3");
  await page.locator("#run").selectOption("other");
  await waitForTitle("Run other");
  await page.goBack();
  await waitForTitle("Step 3");
  assert.equal(await page.locator("#run").inputValue(), "main");
  await page.goForward();
  await waitForTitle("Run other");
  assert.match(page.url(), /\?run=other#\/$/);
});

test("news that come faster than their answers are drawn all the same, and asked for once at a time", async () => {
  await open("#/find/");
  let waiting = 0, most = 0;
  await page.route(/find_episodes/, async (route) => {
    most = Math.max(most, ++waiting);
    await new Promise((resolve) => { setTimeout(resolve, 1000); });
    waiting--;
    await route.continue();
  });
  await page.evaluate(() => {
    window.drawings = 0;
    new MutationObserver(() => { if (document.querySelector("main").getAttribute("aria-busy") === "false") window.drawings++; }).observe(document.querySelector("main"), { attributes: true });
    window.news = setInterval(() => dispatchEvent(new Event("rollbus:again")), 100);
  });
  await page.waitForFunction(() => window.drawings > 2);
  assert.equal(most, 1);
  await page.evaluate(() => clearInterval(window.news));
});

test("tabs in the background leave their connections to those that are looked at", async () => {
  await open("#/find/");
  const turn = (tab, isHidden) => tab.evaluate((value) => {
    Object.defineProperty(document, "hidden", { value, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  }, isHidden);
  let tab = page;
  for (let count = 2; count <= 8; count++) { // a browser has six
    await turn(tab, true);
    tab = await context.newPage();
    await tab.goto(page.url());
    await tab.locator('#state[data-state="live"]').waitFor();
  }
  const again = page.waitForResponse(/find_episodes/);
  await turn(page, false);
  await again;
});
