// Looking through cases one by one, and judging them, in a real Chromium.

import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";

import { card, context, drawn, open, page, text } from "./browser.mjs";

const { BUSY, CLICKHOUSE, OWNER, SCREENSHOTS } = process.env;
const shot = (name) => SCREENSHOTS && page.screenshot({ path: join(SCREENSHOTS, `${name}.png`), fullPage: true });

async function logIn(name) {
  await page.locator("#session").getByRole("button", { name: "log in" }).click();
  await page.locator("#dialog [name=token]").fill(OWNER);
  await page.locator("#dialog [name=name]").fill(name);
  await page.keyboard.press("Enter");
}

test("a search is looked at case by case, by keys", async () => {
  await open("#/find/" + encodeURIComponent("fate=dropped&reason=untrainable"));
  await page.keyboard.press("o");
  await card("queue").waitFor();
  assert.match(await text("queue"), /1 of 256/);
  const first = await page.locator("h1 code").innerText();
  await page.keyboard.press("j");
  await page.waitForFunction(() => /2 of 256/.test(document.querySelector('[data-card="queue"]')?.innerText));
  assert.notEqual(await page.locator("h1 code").innerText(), first);
  await page.keyboard.press("ArrowLeft");
  await page.waitForFunction(() => /1 of 256/.test(document.querySelector('[data-card="queue"]')?.innerText));
  assert.equal(await page.locator("h1 code").innerText(), first);
  assert.match(await text("case"), /asked .*(Where|_ _ X).* and 1 more of the user answered .* reward .* from agent .* fate dropped: untrainable, in scoring: it has no turn that can be trained/);
  await shot("queue");
  await page.keyboard.press("?");
  assert.match(await page.locator("#dialog").innerText(), /j ArrowRight\s+next/);
  await page.keyboard.press("Escape");
});

test("the owner's token opens a session once, which a reload keeps and a log-out ends, and no script reads its cookie", async () => {
  await open("#/find/fate%3Dtrained", { address: BUSY, tolerated: /403/ });
  await card("found").locator("td.id a").first().click();
  assert.match(await text("judging"), /Log in to give one/);
  await page.keyboard.press("l");
  await page.locator("#dialog [name=token]").fill("a guess");
  await page.keyboard.press("Enter");
  await page.locator("#dialog .error").getByText("this is neither the owner's token").waitFor();
  await page.keyboard.press("Escape");
  await logIn("ann");
  await page.locator("#session").getByText("ann").waitFor();
  const [cookie] = await context.cookies();
  assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.path], [true, "Strict", "/api"]);
  assert.equal(await page.evaluate(() => document.cookie), "");
  await page.reload();
  await page.locator("#session").getByText("ann").waitFor();
  await card("judging").getByRole("button", { name: "good" }).waitFor();
  await page.locator("#session").getByRole("button", { name: "log out" }).click();
  await card("judging").getByRole("button", { name: "log in" }).waitFor();
  assert.deepEqual(await context.cookies(), []);
});

test("a verdict, its words and a data set take one key each, and what is judged is marked", async () => {
  await open("#/queue/fate%3Dtrained", { address: BUSY, tolerated: /400/ });
  await logIn("ann");
  await card("judging").getByRole("button", { name: "good" }).waitFor();
  const answered = (pattern) => page.waitForFunction((source) => new RegExp(source).test(document.querySelector(".answer")?.innerText), pattern);
  await page.keyboard.press("u");
  await answered("^It is in the log: reward 1, by ann");
  assert.match(await text("queue"), /judged by ann/);
  await page.keyboard.press("c");
  await page.keyboard.type("as it should be");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector(".own [name=comment]").value === ""); // it is with the verdict
  await page.keyboard.press("Escape");
  await page.keyboard.press("4");
  await answered("^It is in the log: reward 0.75");
  await card("judging").locator("[name=data_set]").fill("no/folder");
  await page.keyboard.press("Enter");
  await answered("cannot name a data set");
  await card("judging").locator("[name=data_set]").fill("silver");
  await page.keyboard.press("Escape");
  await page.keyboard.press("i");
  await answered("^It is in the log: into silver");
  await shot("judged");
  await page.keyboard.press("n");
  await page.waitForFunction(() => /2 of /.test(document.querySelector('[data-card="queue"]')?.innerText));
  assert.match(await text("queue"), /not judged/);
  await page.keyboard.press("k");
  await page.waitForFunction(() => /1 of /.test(document.querySelector('[data-card="queue"]')?.innerText));
  const id = await page.locator("h1 code").innerText();
  const at = "now64(3), 'episode-events', 0, 99, now64(3)";
  await insert(`INSERT INTO page.trajectory_rewards (namespace, trajectory_id, episode_id, revision, event_id, name, value, source, principal, in_force, revised_at, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp) SELECT 'rollbus.', '${id}', 'e', 1, 'verdict-1', 'reward', 0.75, 'operator', 'ann', true, ${at}`);
  await page.evaluate(() => dispatchEvent(new Event("rollbus:again")));
  await card("case").getByText("0.750 from ann (operator)").waitFor();
  await page.goto(new URL("#/find/judge%3Dann", page.url()).href);
  await page.waitForFunction(() => /of 1,/.test(document.querySelector('[data-card="found"]')?.innerText));
});

test("a comment goes with the verdict of its judge under its name, and with no other", async () => {
  await open("#/queue/fate%3Dtrained", { address: BUSY });
  const asked = [];
  await page.route(/api\/verdicts/, async (route) => { asked.push(route.request().postDataJSON()); await route.fulfill({ json: { event_id: "e" } }); });
  const comment = async (words, name) => {
    await card("judging").locator("[name=name]").fill(name);
    await card("judging").locator("[name=comment]").fill(words);
    await card("judging").locator("[name=comment]").press("Enter");
  };
  const answered = (pattern) => page.waitForFunction((source) => new RegExp(source).test(document.querySelector(".answer")?.innerText), pattern);
  await logIn("ann");
  await card("judging").getByText("As ann").waitFor();
  await card("judging").locator("[name=name]").fill("style");
  await card("judging").getByRole("button", { name: "good" }).click();
  await answered("style 1, by ann");
  await comment("for another name", "helpful");
  await answered("A comment goes with a verdict");
  await comment("for this one", "style");
  await page.waitForFunction(() => document.querySelector(".answer.done"));
  await card("judging").getByRole("button", { name: "take back" }).click();
  await answered("taken back");
  await comment("too late", "style");
  await answered("A comment goes with a verdict");
  await card("judging").getByRole("button", { name: "bad" }).click();
  await answered("style 0, by ann");
  await page.locator("#session").getByRole("button", { name: "log out" }).click();
  await card("judging").getByRole("button", { name: "log in" }).waitFor();
  await logIn("bob");
  await card("judging").getByText("As bob").waitFor();
  await comment("of another judge", "style");
  await answered("A comment goes with a verdict");
  assert.deepEqual(asked.map(({ name, value, comment: words }) => [name, value, words]), [
    ["style", 1, undefined], ["style", 1, "for this one"], ["style", null, undefined], ["style", 0, "too late"],
  ]);
});

test("an action says what it will do, asks for a reason, and is done only as it was shown", async () => {
  await open("#/audit/", { address: BUSY, tolerated: /400/ });
  assert.match(await text("audit"), /run pause main/);
  await logIn("ann");
  await card("act").getByRole("button", { name: "Pause the run" }).click();
  const dialog = page.locator("#dialog"), submit = dialog.locator("[type=submit]");
  assert.match(await dialog.innerText(), /cuts no more batches/);
  await dialog.locator("[name=reason]").fill("the loss rises");
  await submit.click();
  await dialog.getByText("rollbus run pause main '--comment=ann: the loss rises'").waitFor();
  await shot("confirm");
  await dialog.locator("[name=reason]").fill("it does not learn");
  assert.equal(await submit.innerText(), "Show what it will do");
  await submit.click();
  await dialog.getByText("it does not learn").waitFor();
  await submit.click();
  await dialog.getByText("pause is in the log of run main").waitFor();
  await page.keyboard.press("Escape");
  await shot("audit");
});

const insert = async (body) => assert.equal((await fetch(CLICKHOUSE, { method: "POST", body })).status, 200);
