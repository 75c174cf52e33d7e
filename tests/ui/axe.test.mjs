// axe-core on every view, light and dark: no finding that it calls serious or critical. And what a pair and a chart give.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { card, drawn, open, page, text } from "./browser.mjs";

const { BROKEN, BUSY, HOSTILE, NODE_FOLDER, OWNER, SCREENSHOTS, TRAJECTORY } = process.env;
const AXE = readFileSync(join(NODE_FOLDER, "node_modules/axe-core/axe.min.js"), "utf8");
const VIEWS = ["#/", "#/find/", "#/queue/fate%3Ddropped", "#/dropped/curriculum%2Fno_signal", "#/compare/left_version%3D5%26right_version%3D80", "#/audit/", "#/step/50"];

async function sound(view) {
  await drawn();
  await page.evaluate(AXE);
  const found = await page.evaluate(async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
    .filter((each) => ["serious", "critical"].includes(each.impact)).map((each) => `${each.id}: ${each.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`));
  assert.deepEqual(found, [], view);
}

for (const colorScheme of ["light", "dark"]) {
  test(`axe finds nothing serious in any view, ${colorScheme}`, async () => {
    await open("#/", { address: BUSY, colorScheme, bypassCSP: true, reducedMotion: "reduce", viewport: { width: 390, height: 800 } });
    await page.locator("#session button").click();
    await sound("log in");
    await page.locator("#dialog [name=token]").fill(OWNER);
    await page.keyboard.press("Enter");
    await page.locator("#session").getByText("operator").waitFor();
    for (const hash of VIEWS) {
      await page.goto(new URL(hash, page.url()).href);
      await sound(hash);
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${hash} is wider than its window`);
    }
    await page.locator('[data-card="groups"] td.id a').first().click();
    await card("members").waitFor();
    await sound("group");
    const group = page.url();
    await card("members").locator("td.id a").first().click();
    await card("conversation").waitFor();
    await sound("trajectory");
    await card("conversation").locator('[data-kind="TurnRecorded"] .head a').first().click();
    await card("raw turn_tokens").waitFor();
    await sound("event");
    await page.goto(group);
    await card("members").getByRole("link", { name: "beside the best" }).first().click();
    await card("sides").waitFor();
    await sound("pair");
  });
}

test("axe finds nothing serious in a conversation of hostile texts", async () => {
  await open(`#/trajectory/${TRAJECTORY}`, { address: HOSTILE, bypassCSP: true });
  await sound("hostile");
});

test("axe finds nothing serious where losses are not numbers, nor in the comparison of two runs", async () => {
  await open("#/", { address: BROKEN, bypassCSP: true });
  await card("metric loss").locator("canvas").waitFor();
  await sound("broken losses");
  await page.goto(new URL("#/compare/left%3Dmain%26right%3Dother", page.url()).href);
  await card("both loss").locator("canvas").waitFor();
  await sound("two runs");
});

test("a chart of two runs gives its numbers, its picture and its SQL", async () => {
  await open("#/compare/left%3Dmain%26right%3Dother", { address: BROKEN });
  await card("both loss").locator("summary").click();
  for (const kind of ["CSV", "PNG"]) await card("both loss").getByRole("button", { name: `download as ${kind}` }).waitFor();
  await card("both loss").getByRole("button", { name: "SQL of its question" }).click();
  await page.locator("#dialog pre").waitFor();
  assert.match(await page.locator("#dialog").innerText(), /thin_steps[\s\S]*FROM steps FINAL/);
});

test("two members of a group are side by side, and what differs is marked", async () => {
  await open("#/step/50");
  await card("groups").locator("td.id a").first().click();
  await card("members").getByRole("link", { name: "beside the best" }).last().click();
  await card("turn 1").waitFor();
  assert.match(await text("sides"), /trajectory .* sampled by .* reward .* advantage of each token .* trajectory/);
  const marks = await page.locator("main .pair del, main .pair ins").count();
  const same = await page.locator("main .remark", { hasText: "The same." }).count();
  assert.ok(marks > 0 || same > 0);
  if (SCREENSHOTS) await page.screenshot({ path: join(SCREENSHOTS, "pair.png"), fullPage: true });
});

test("a chart gives its numbers as CSV, its picture and its SQL, and the spread of rewards is drawn", async () => {
  await open();
  await card("metric loss").locator("summary").click();
  const saved = async (name) => { const [file] = await Promise.all([page.waitForEvent("download"), card("metric loss").getByRole("button", { name }).click()]); return file; };
  const csv = await saved("download as CSV");
  assert.equal(csv.suggestedFilename(), "loss.csv");
  assert.match(readFileSync(await csv.path(), "utf8"), /^"step","loss"\r\n1,0\.12\d+/);
  const picture = readFileSync(await (await saved("download as PNG")).path());
  assert.equal(picture.subarray(1, 4).toString(), "PNG");
  await card("metric loss").getByRole("button", { name: "SQL of its question" }).click();
  await page.locator("#dialog pre").waitFor();
  assert.match(await page.locator("#dialog").innerText(), /thin_steps[\s\S]*FROM steps FINAL/);
  await page.keyboard.press("Escape");
  for (const name of ["spread reward", "spread advantage"]) await card(name).locator("canvas").waitFor();
  await card("spread reward").locator("summary").click();
  const bins = (await card("spread reward").locator(".scroll tr").allInnerTexts()).map((row) => row.replace(/\s+/g, " "));
  assert.equal(bins.length, 21, "a bin without a trajectory is there too");
  for (const [at, bin] of [[0, /^reward trajectories$/], [1, /^0 to 0\.050 \d,\d+$/], [2, /^0\.050 to 0\.100 0$/], [20, /^0\.950 to 1 \d,\d+$/]]) assert.match(bins[at], bin);
  if (SCREENSHOTS) await page.screenshot({ path: join(SCREENSHOTS, "overview.png"), fullPage: true });
});
