// What a user of `rollbus ui` sees of texts that mean harm, over the database of tests/ui/hostile.py.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";

import { card, context, drawn, open, page, text } from "./browser.mjs";

const { HOSTILE, TRAJECTORY } = process.env;
const conversation = () => open(`#/trajectory/${TRAJECTORY}`, { address: HOSTILE });
const said = (nth) => card("conversation").locator('[data-kind="TurnRecorded"]').nth(nth).locator(".said");

test("markup in a conversation is text, and nothing of it becomes an element or an attribute", async () => {
  await conversation();
  assert.match(await said(0).first().innerText(), /<script>window\.hacked = 1<\/script><img src=x onerror='window\.hacked = 2'>/);
  assert.match(await said(1).first().innerText(), /" onmouseover="window\.hacked = 3" style='position:fixed;inset:0'/);
  assert.equal(await page.locator("main script, main img, main svg, main b, main [onmouseover], main [onclick], main [onload], main [onerror]").count(), 0);
  assert.equal(await page.locator('main a:not([href^="#/"])').count(), 0);
  for (const name of ["trajectory", "decided", "conversation"]) await card(name).hover();
});

test("a role is a word, and does not choose how the page looks", async () => {
  await conversation();
  const odd = card("conversation").locator(".said", { hasText: "who am I?" });
  assert.equal(await odd.getAttribute("class"), "said");
  assert.ok((await odd.boundingBox()).height > 20, "it cannot be seen");
  assert.match(await odd.innerText(), /^skip unseen" onclick='window\.hacked=8'/);
});

test("what turns a line round or cannot be seen is named where it stands", async () => {
  await conversation();
  const shown = said(2).first().locator("p");
  assert.equal(await shown.innerText(), "pay U+202E001U+202C dollars, U+200BnoU+2066thingU+2069 else U+E0041U+E0042 U+0007");
  assert.equal(await shown.locator(".unseen-sign").count(), 8);
});

test("a text too long to look at is folded, opens on demand, and is never wider than its place", async () => {
  await conversation();
  for (const [nth, size] of [[3, 300_000], [4, 318_889]]) {
    const bubble = said(nth).first();
    assert.ok((await bubble.locator("p").innerText()).length < 20_000);
    const more = bubble.getByRole("button");
    assert.match(await more.innerText(), new RegExp(`show all ${size.toLocaleString("en")} characters`));
    await more.click();
    assert.equal((await bubble.locator("p").textContent()).length, size);
  }
  await page.evaluate(() => dispatchEvent(new Event("rollbus:again"))); // as when something was written
  await page.waitForTimeout(100);
  await drawn();
  assert.equal((await said(3).first().locator("p").textContent()).length, 300_000, "what a reader has unfolded stays");
  assert.ok(!(await said(3).first().getByRole("button").isVisible()), "its button does nothing any more");
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the page is wider than its window");
});

test("tool calls are shown as calls, and what is none as it was received", async () => {
  await conversation();
  const calls = [];
  for (let nth = 7; nth < 13; nth++) calls.push((await said(nth).last().locator("p").allInnerTexts()).join("\n"));
  assert.equal(calls[0], "→ look_up");
  assert.equal(await said(7).last().locator(".tree").innerText(), "where here");
  assert.equal(calls[1], "→ <script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>(U+D83D half of a pair)");
  assert.equal(calls[2], '→ {"not":"a list"}');
  assert.equal(calls[3], '→ null\n→ 7\n→ text\n→ {"function":null}\n→ x()');
  assert.equal(calls[4], "→ no JSON {[");
  assert.equal(calls[5], "(nothing)");
});

test("parts, reasoning and names of a message are shown, and a picture is named, not loaded", async () => {
  await conversation();
  const turn = card("conversation").locator('[data-kind="TurnRecorded"]').nth(13);
  const texts = (await turn.locator(".said").allInnerTexts()).map((each) => each.replace(/\s+/g, " "));
  assert.match(texts[0], /who am I\?/);
  assert.match(texts[1], /^user What is in this picture\? \{"type":"image_url","image_url":\{"url":"https:\/\/elsewhere\.example\/spy\.png"\}\} null$/);
  assert.match(texts[2], /^user no JSON \]$/);
  assert.match(texts[3], /^assistant reasoning Let me think\. <script>.*> Yes\.$/);
});

test("a text that is nested deeper than a call can go is shown as it was written", async () => {
  await conversation();
  const deep = card("conversation").locator('[data-kind="ToolCalled"]', { hasText: "→ deep" });
  assert.equal((await deep.locator(".said p").first().innerText()).slice(0, 20), "→ deep([[[[[[[[[[[[[");
  assert.equal(await deep.locator(".tree").count(), 0);
  const quotes = card("conversation").locator('[data-kind="TurnRecorded"]').nth(15).locator(".said");
  assert.match(await quotes.last().innerText(), /^assistant\s+(> ){100}/);
});

test("numbers keep the digits that they were written with", async () => {
  await conversation();
  const bought = card("conversation").locator('[data-kind="ToolCalled"]', { hasText: "→ buy" });
  for (const nth of [0, 1]) assert.equal((await bought.locator(".tree").nth(nth).innerText()).replace(/\s+/g, " "), "order 12345678901234567890 price 1.10");
  await bought.locator(".head a").click();
  await card("raw tool_calls").waitFor();
  assert.match(await card("raw tool_calls").locator("pre").innerText(), /"order": 12345678901234567890,\s+"price": 1\.10/);
});

test("a log-prob that is not a number is in no mean", async () => {
  await conversation();
  const turn = card("conversation").locator('[data-kind="TurnRecorded"]').nth(15);
  assert.match(await turn.locator(".legend").innerText(), /2 tokens, mean log-prob -1, in all -1 of the 1 that have one/);
});

test("a text that a spreadsheet would run is marked in the CSV of a chart", async () => {
  await open("#/find/", { address: HOSTILE });
  const lines = await page.evaluate(async () => {
    const { csv } = await import("/static/charts.js");
    const name = "=HYPERLINK(0)";
    return decodeURIComponent(csv([{ title: "step" }, { title: name, of: () => "+1" }, { title: "loss", of: () => -1 }], [{}], () => "\uff1d1").split(",").slice(1).join(","));
  });
  assert.equal(lines, '"step","\'=HYPERLINK(0)","loss"\r\n"\'\uff1d1","\'+1",-1');
});

test("hostile names lead from group to trajectory to event and back", async () => {
  await open("#/", { address: HOSTILE });
  await page.evaluate(() => { location.hash = "#/group/" + encodeURIComponent("g/../\"><b onmouseover='window.hacked=7'>%00"); });
  await card("members").waitFor();
  assert.match(await text("members"), /<script>window\.hacked = 1/);
  await card("members").locator("td.id a").first().click();
  await card("conversation").waitFor();
  assert.match(await text("trajectory"), /episode \.\.\/%2F\?#&"><svg onload='window\.hacked=6'>/);
  await card("conversation").locator('[data-kind="ToolCalled"] .head a').first().click();
  await card("raw tool_calls").waitFor();
  assert.match(await card("raw tool_calls").locator("pre").innerText(), /onerror='window\.hacked = 2'/);
  assert.match(await card("raw tool_calls").locator("pre").innerText(), /U\+202E001U\+202C/);
  await page.locator("#trail a").nth(1).click();
  await card("members").waitFor();
});

for (const address of ["#/trajectory/%", "#/event/%00", "#/step/<b>", "#/group/%ED%A0%80", "#/trajectory/", "#/__proto__/x", "#/constructor/x"]) {
  test(`an address that leads nowhere, ${address}, is answered and leaves the page alive`, async () => {
    await open(address, { address: HOSTILE, tolerated: /status of (400|503)/ });
    assert.ok((await page.locator("main").innerText()).length > 10);
    await page.evaluate(() => { location.hash = "#/"; });
    await drawn();
    await card("fates").waitFor();
  });
}

test("another program on this machine is asked by the same browser and does not get what opens the page", async () => {
  await open("#/", { address: HOSTILE });
  const token = new URL(HOSTILE).hash.slice("#token=".length);
  assert.equal(await page.evaluate(() => localStorage.getItem("rollbus-page")), token);
  const heard = [];
  const neighbour = createServer((request, response) => {
    heard.push(JSON.stringify([request.url, request.rawHeaders]));
    response.setHeader("content-type", "text/html");
    response.end("<link rel=icon href=data:,><script>document.title = JSON.stringify(localStorage)</script>");
  });
  await new Promise((done) => neighbour.listen(0, "127.0.0.1", done));
  try {
    const own = await context.newPage();
    await own.goto(`http://127.0.0.1:${neighbour.address().port}/`);
    assert.equal(await own.title(), "{}");
  } finally { neighbour.close(); neighbour.closeAllConnections(); }
  assert.ok(heard.length && heard.every((each) => !each.includes(token)), "it came along");
});
