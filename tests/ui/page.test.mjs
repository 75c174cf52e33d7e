// What a user of `rollbus ui` sees, in a real Chromium, over the database of tests/ui/database.py.

import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";

import { card, context, drawn, open, page, text } from "./browser.mjs";

const { BROKEN, BUSY, CLICKHOUSE, FRESH, LONG, LOST, PAGE, SCREENSHOTS, SENTENCES } = process.env;
const EPISODES = "12,813", STEPS = 99;
// 13 of them were lost before they were assembled.

test("the overview shows reward, fates, staleness, every metric of a step, lag and dead letters", async () => {
  await open();
  const glance = await page.locator(".figures").innerText();
  assert.match(glance, new RegExp(`steps\\s+${STEPS}`));
  assert.match(glance, new RegExp(`episodes\\s+${EPISODES}`));
  for (const name of ["reward", "metric loss", "metric KL to reference", "metric entropy", "metric clip fraction", "metric gradient norm", "staleness"]) {
    assert.ok(await inked(name), `${name}: nothing is drawn`);
  }
  assert.match(await text("lag"), /episode-events 1,284/);
  assert.match(await text("groups lag"), /Kafka/); // there is none here, and that is said
  assert.match(await text("dead letters"), /assembly episode-events DecodeError 4/);
  assert.match(await text("decisions"), /2 \S+ \S+ quarantine 98 97 – worse:reward -0.061 \[-0.100, -0.020\] 312 \/ 9,800/);
  assert.match(await text("decisions"), /1 \S+ \S+ canary 98 97 98, 5.0 % newest_candidate – –/);
});

test("the overview opens with the funnel of the run: each stage, what is lost there, and what to do", async () => {
  await open("#/", { address: LOST });
  assert.equal(await page.locator("main > section").first().getAttribute("data-card"), "funnel");
  const funnel = await text("funnel");
  assert.match(funnel, /0 of 29 episodes are trained; 1 of 16 groups/);
  assert.match(funnel, /trainable .* 3 4 4 have no turn that can be trained \(no_token_ids\) → serve the model/);
  assert.match(funnel, /6 waited for members of their group that never came/);
  for (const [scheme, width] of SCREENSHOTS ? [["light", 1360], ["dark", 1360], ["light", 390]] : []) {
    await page.emulateMedia({ colorScheme: scheme });
    await page.setViewportSize({ width, height: 900 });
    await page.waitForTimeout(300);
    await page.screenshot({ path: join(SCREENSHOTS, `ui-funnel-${scheme}-${width}.png`) });
  }
});

test("each situation that keeps episodes from a step is said in words on the page of its run", async () => {
  let said = "";
  for (const run of ["main", "narrow", "other", "judged"]) {
    await open("#/", { address: LOST });
    await page.locator("#run").selectOption(run);
    await page.waitForFunction((name) => document.querySelector("h1")?.textContent === `Run ${name}` && document.querySelector("main").getAttribute("aria-busy") === "false", run);
    said += await text("funnel");
    if (run !== "judged") await context.close();
  }
  for (const [name, words] of Object.entries(JSON.parse(SENTENCES))) assert.ok(said.includes(words), `${name}: ${words}\n${said}`);
});

test("without traffic for a day the funnel says when the newest episode began", async () => {
  await open();
  assert.match(await text("funnel"), /no episode has begun in the last 24 hours; the newest began \d+ days ago/);
});

test("a strip says which processes live, who is silent, how old the newest step is, and what to do", async () => {
  await open("#/", { address: BUSY });
  const strip = page.locator("#health");
  await strip.getByText("sink silent for").waitFor(); // it missed three beats
  const said = (await strip.innerText()).replace(/\s+/g, " ");
  assert.match(said, /^2 problems worker × 2 sink silent for \d+ (s|min) nothing waits in Kafka step 7, \d+ min ago dead letters in Kafka: 1 /, await strip.textContent());
  await strip.locator("summary").click();
  assert.match(await strip.innerText(), /silence\s+sink \d+ on \S+ has been silent for/);
  assert.match(await strip.innerText(), /rollbus dead-letters list/);
  await page.waitForResponse((answer) => answer.url().endsWith("/api/health"));
  await page.waitForTimeout(100);
  assert.ok(await strip.locator("details[open]").isVisible(), "what a reader has opened stays open");
  for (const [colorScheme, width] of SCREENSHOTS ? [["light", 1360], ["dark", 1360], ["light", 390]] : []) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize({ width, height: 700 });
    await page.waitForTimeout(300);
    await page.screenshot({ path: join(SCREENSHOTS, `ui-health-${colorScheme}-${width}.png`) });
  }
  await page.goto(new URL("#/find/", page.url()).href);
  await drawn();
  assert.match(await strip.innerText(), /worker × 2/, "it is over every view");
});

test("without Kafka the strip says so in one line, and the rest of the page is there", async () => {
  await open();
  const strip = page.locator("#health");
  await strip.getByText("Health is not known").waitFor();
  assert.match(await strip.innerText(), /^Health is not known: .*127\.0\.0\.1:9\b/);
  assert.equal(await strip.locator("> *").count(), 1);
  assert.match(await page.locator(".figures").innerText(), new RegExp(`steps\\s+${STEPS}`));
});

test("fates flow from all trajectories to trained, dropped by stage and reason, and pending", async () => {
  await open();
  const flow = await card("fates").locator("svg").innerHTML();
  for (const [name, count] of [["began", "12,813"], ["dropped in curriculum", "3,752"], ["no signal", "3,752"], ["untrainable", "256"], ["stale", "189"], ["pending", "125"]]) {
    assert.match(flow, new RegExp(`${name}</tspan><tspan[^>]*>${count} `), name);
  }
  const spoken = await card("fates").locator("svg").getAttribute("aria-label");
  assert.match(spoken, /Of 12,813 episodes: 8,478 trained/);
});

test("a chart's numbers are there as a table too, and stand open when the page draws anew", async () => {
  await open();
  await card("metric loss").locator("summary").click();
  const rows = card("metric loss").locator(".scroll tbody tr");
  assert.equal(await rows.count(), STEPS);
  assert.match((await rows.first().innerText()).replace(/\s+/g, " "), /^1 0\.126$/);
  await page.emulateMedia({ colorScheme: "dark" });
  await page.waitForFunction(() => getComputedStyle(document.body).backgroundColor === "rgb(18, 22, 28)");
  await drawn();
  await page.waitForSelector('[data-card="metric loss"] details[open]');
});

test("the newest step leads to its groups, a group's trajectories, the conversation and the raw event", async () => {
  await open();
  await card("steps").getByRole("link", { name: "50" , exact: true }).click();
  await card("groups").waitFor();
  assert.match(await text("step"), /weights 49 → 50/);
  await card("groups").locator("td.id a").first().click();
  await card("members").waitFor();
  assert.equal(await card("members").locator("tbody tr").count(), 8);
  assert.match(await text("members"), /trained 50/);
  await card("members").locator("td.id a").first().click();
  await card("conversation").waitFor();
  assert.match(await text("decided"), /trained in step 50 lag 2 training-steps 0:50/);
  assert.match(await text("conversation"), /user The board is X/);
  assert.match(await text("trajectory"), /ended without a reason/);
  await card("conversation").locator('[data-kind="TurnRecorded"] .head a').first().click();
  await card("raw turn_tokens").waitFor();
  const raw = JSON.parse(await card("raw events").locator("pre").innerText());
  assert.equal(raw.kind, "TurnRecorded");
  assert.equal(raw.kafka_topic, "episode-events");
  assert.match(await text("influenced"), /main .* 50 trained 50/);
  const trail = (await page.locator("#trail li").allInnerTexts()).map((each) => each.split(" ")[0]);
  assert.deepEqual(trail, ["overview", "step", "group", "trajectory", "event"]);
  await page.locator("#trail a").nth(1).click();
  await card("groups").waitFor();
});

test("each sampled token has its text, and the less likely it was the deeper is its colour", async () => {
  await open("#/step/50");
  await card("groups").locator("td.id a").first().click();
  await card("members").locator("td.id a").first().click();
  await card("conversation").waitFor();
  const tokens = await card("conversation").locator('[data-kind="TurnRecorded"]').first().locator(".token").evaluateAll((all) =>
    all.map((each) => ({ text: each.innerText, label: each.getAttribute("aria-label"), depth: parseFloat(each.style.getPropertyValue("--depth")), colour: getComputedStyle(each).backgroundColor })));
  assert.equal(tokens.length, 20);
  for (const { text: shown, label, depth } of tokens) {
    const [, id, logprob] = label.match(/token (\d+), log-prob (-?[\d.]+), chance/);
    assert.equal(shown.trim(), `w${id}`);
    assert.equal(depth, Math.round(Math.min(1, Number(logprob) / -5) * 100));
  }
  const [deep, pale] = [tokens.reduce((a, b) => (a.depth > b.depth ? a : b)), tokens.reduce((a, b) => (a.depth < b.depth ? a : b))];
  assert.notEqual(deep.colour, pale.colour);
});

test("everything can be reached with the keyboard, and a screen reader has names for it", async () => {
  await open();
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the content");
  await card("steps").getByRole("link", { name: "98", exact: true }).focus();
  await page.keyboard.press("Enter");
  await card("groups").waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  assert.equal(await page.locator("main .plot:not([aria-label]), main svg:not([aria-label]), main section:not([aria-label])").count(), 0);
});

for (const colorScheme of ["light", "dark"]) {
  test(`text stands out from its ground in every view, ${colorScheme}`, async () => {
    await open("#/", { colorScheme, address: BUSY });
    await page.locator("#health").getByText("sink silent for").waitFor();
    await stoodOut(colorScheme, "overview");
    await card("steps").getByRole("link", { name: "50", exact: true }).click();
    await card("groups").waitFor();
    await stoodOut(colorScheme, "step");
    await card("groups").locator("td.id a").first().click();
    await card("members").waitFor();
    await stoodOut(colorScheme, "group");
    await card("members").locator("td.id a").first().click();
    await card("conversation").waitFor();
    await stoodOut(colorScheme, "trajectory");
    await card("conversation").locator('[data-kind="TurnRecorded"] .head a').first().click();
    await card("raw turn_tokens").waitFor();
    await stoodOut(colorScheme, "event");
    await page.goto(new URL("#/find/fate%3Ddropped", page.url()).href);
    await card("found").waitFor();
    await stoodOut(colorScheme, "find");
    await page.goto(new URL("#/compare/left_version%3D5%26right_version%3D80", page.url()).href);
    await card("rewards").waitFor();
    await stoodOut(colorScheme, "compare");
  });
}

async function stoodOut(colorScheme, view) {
  await drawn();
  const pairs = await page.evaluate(() => [...document.querySelectorAll("h1, h2, .remark, td, th, dt, dd, p, pre, .label, label, button, .role, a:not(svg a), #state")].map((each) => {
    let ground = each;
    while (getComputedStyle(ground).backgroundColor === "rgba(0, 0, 0, 0)" && ground.parentElement) ground = ground.parentElement;
    return [getComputedStyle(each).color, getComputedStyle(ground).backgroundColor, each.textContent.slice(0, 30)];
  }));
  for (const [ink, ground, what] of pairs) assert.ok(contrast(ink, ground) >= 4.5, `${view}: ${what}: ${contrast(ink, ground)}`);
  if (!SCREENSHOTS) return;
  await page.waitForTimeout(300);
  await page.screenshot({ path: join(SCREENSHOTS, `ui-${view}-${colorScheme}.png`), fullPage: true });
}

test("what the sink writes appears without a reload", async () => {
  await open();
  await page.waitForSelector('#state[data-state="live"]');
  assert.match(await page.locator(".figures").innerText(), /dead letters\s+7/);
  const insert = "INSERT INTO page.dead_letters (namespace, stage, topic, partition, offset, timestamp, error_class, message, attempt, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp) " +
    "SELECT 'rollbus.', 'trainer', 'batches', 0, 99, now64(3), 'LateError', '<img src=x onerror=alert(1)>', 1, 'dead-letters', 0, 99, now64(3)";
  await fetch(CLICKHOUSE, { method: "POST", body: insert });
  await page.waitForFunction(() => /dead letters\s+8/.test(document.querySelector(".figures").innerText));
  assert.match(await text("dead letters"), /LateError 1 trainer <img src=x onerror=alert\(1\)>/);
});

test("a narrow window scrolls in one direction only, in every view", async () => {
  await open("#/", { address: BUSY, viewport: { width: 390, height: 800 } });
  await page.locator("#health").getByText("sink silent for").waitFor();
  if (SCREENSHOTS) await page.screenshot({ path: join(SCREENSHOTS, "ui-narrow-light.png"), fullPage: true });
  for (const hash of ["#/", "#/find/", "#/find/fate%3Ddropped", "#/dropped/curriculum%2Fno_signal", "#/compare/left_version%3D5%26right_version%3D80", "#/step/50"]) {
    await page.goto(new URL(hash, page.url()).href);
    await drawn();
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${hash} is wider than its window`);
  }
  await card("groups").locator("td.id a").first().click();
  await card("members").locator("td.id a").first().click();
  await card("conversation").waitFor();
  await drawn();
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "a trajectory is wider than its window");
});

for (const width of [320, 390]) {
  test(`in a window of ${width} pixels no label of the fates is cut or covered by another`, async () => {
    await open("#/", { viewport: { width, height: 800 } });
    const [room, labels] = await card("fates").evaluate((each) => [each.getBoundingClientRect().right, [...each.querySelectorAll("svg text")].map((text) => {
      const { left, right, top, bottom } = text.getBoundingClientRect();
      return { text: text.textContent, left, right, top, bottom };
    })]);
    assert.equal(labels.length, 11);
    for (const { text: said, right } of labels) assert.ok(right <= room, `${said} ends ${right - room} px outside`);
    for (const [at, one] of labels.entries()) for (const other of labels.slice(at + 1)) {
      assert.ok(one.right <= other.left || other.right <= one.left || one.bottom <= other.top + 1 || other.bottom <= one.top + 1, `${one.text} is over ${other.text}`);
    }
    await page.setViewportSize({ width: 1360, height: 900 });
    await page.waitForFunction(() => document.querySelector(".flow").viewBox.baseVal.width === 1100);
  });
}

test("episodes are found by task, label, reward, version, fate, reason, text and time", async () => {
  await open("#/find/", { tolerated: /400/ });
  assert.match(await text("found"), /1 to 100 of 12,800/);
  const search = card("search");
  for (const [field, value] of Object.entries({ task: "task-4", reward_from: "0.5", version: "80", text: "LOWER RIGHT" })) await search.locator(`[name=${field}]`).fill(value);
  await search.locator("[name=fate]").selectOption("trained");
  await search.getByRole("button", { name: "Find" }).click();
  await page.waitForFunction(() => location.hash.includes("task-4"));
  await drawn();
  const rows = await card("found").locator("tbody tr").allInnerTexts();
  assert.ok(rows.length > 0 && rows.length < 9, `${rows.length} rows`);
  for (const row of rows) assert.match(row.replace(/\s+/g, " "), /task-4 user user-\d+ 80 1 – trained 8\d/);
  await page.goto(new URL("#/find/" + encodeURIComponent("label=user&label_value=user-77&since=2026-01-01 02:00"), page.url()).href);
  await page.waitForFunction(() => /of 1,/.test(document.querySelector('[data-card="found"]')?.innerText));
  await page.goto(new URL("#/find/" + encodeURIComponent("since=soon"), page.url()).href);
  await page.waitForSelector('[data-card="found"] .error');
  assert.match(await text("found"), /since and until are times in UTC such as 2026-01-31 12:00/);
});

test("the next page of a search follows the last row of the one before, and the way back leads to the newest", async () => {
  await open("#/find/");
  const ids = () => card("found").locator("td.id a").allInnerTexts();
  const newest = await ids();
  await card("found").getByRole("link", { name: "older" }).click();
  await page.waitForFunction(() => /101 to 200 of/.test(document.querySelector('[data-card="found"]')?.innerText));
  await drawn();
  const older = await ids();
  assert.match(page.url(), /after%3D[0-9a-f]+/);
  assert.equal(new Set([...newest, ...older]).size, 200);
  await card("found").getByRole("link", { name: "newer" }).click();
  await page.waitForFunction(() => /1 to 100 of/.test(document.querySelector('[data-card="found"]')?.innerText));
  await drawn();
  assert.deepEqual(await ids(), newest);
});

test("a reason leads to what was dropped for it, and to its episodes", async () => {
  await open();
  await card("fates").locator("svg a tspan.what", { hasText: /^untrainable$/ }).click();
  await page.waitForFunction(() => /of 256,/.test(document.querySelector('[data-card="found"]')?.innerText));
  assert.equal(await card("search").locator("[name=reason]").inputValue(), "untrainable");
  assert.match(await card("found").locator("tbody tr").first().innerText(), /dropped: untrainable/);
  await page.goto(new URL("#/", page.url()).href);
  await card("drops").getByRole("link", { name: "missing events" }).click();
  await card("units").waitFor();
  assert.match(await text("units"), /13 of 13, .* episode [0-9a-f]+/);
  await card("units").locator("td.id a").first().click();
  await card("decided").waitFor();
  assert.match(await text("trajectories"), /It became none/);
  assert.match(await text("decided"), /assembly dropped: missing_events/);
});

test("what was found can be exported by the command that is shown, of the run and data set that were chosen", async () => {
  await open("#/find/" + encodeURIComponent("data_set=gold&task=what's \"up\"!&id=x"), { address: PAGE });
  assert.match(await text("found"), /None matches/);
  await page.goto(new URL("#/find/" + encodeURIComponent("data_set=gold&fate=dropped"), page.url()).href);
  await card("found").locator("summary", { hasText: "Take them" }).click();
  assert.match(await card("found").locator("pre").innerText(), /^rollbus export sft out\/sft --run main --data-set gold --where "fate = 'dropped'"$/m);
  assert.ok(await page.locator('datalist#data-sets option[value="gold"]').count());
  await card("search").locator("[name=reason]").fill("no signal"); // as the page writes it
  await card("search").locator("[name=data_set]").fill("");
  await card("search").locator("[name=fate]").selectOption("");
  await card("search").getByRole("button", { name: "Find" }).click();
  await page.waitForFunction(() => /of 3,752,/.test(document.querySelector('[data-card="found"]')?.innerText));
});

test("a loss that is not a number breaks its line, has a red mark at its step, and is counted on the card and at the top", async () => {
  await open("#/", { address: BROKEN });
  assert.match(await text("metric loss"), /No number in 2 steps, from step 8 on: NaN or infinite/);
  assert.match(await page.locator(".figures").innerText(), /2 with a loss that is not a number/);
  assert.equal(await card("steps").getByText("no number").count(), 2);
  await card("metric loss").locator("canvas").waitFor();
  const { losses, reds } = await card("metric loss").locator(".plot").evaluate(({ plot }) => {
    const { ctx, bbox: { top, height } } = plot;
    const red = ([r, g, b, alpha]) => alpha > 0 && r > g + 40 && r > b + 40;
    const redness = (step) => [...Array(height).keys()].filter((y) => red(ctx.getImageData(Math.round(plot.valToPos(step, "x", true)), top + y, 1, 1).data)).length / height;
    return { losses: plot.data[1], reds: Object.fromEntries([7, 8, 9, 13, 14, 15].map((step) => [step, redness(step)])) };
  });
  assert.deepEqual(losses.flatMap((loss, at) => (loss === null ? [at + 1] : [])), [8, 14]);
  for (const [step, share] of Object.entries(reds)) assert.equal(share > 0.9, ["8", "14"].includes(step), `step ${step} is red over ${share} of the chart`);
  await page.locator("#run").selectOption("other");
  await page.waitForFunction(() => document.querySelector("h1")?.textContent === "Run other" && document.querySelector("main").getAttribute("aria-busy") === "false");
  assert.doesNotMatch(await text("metric loss"), /No number/);
});

test("evaluations, served versions and pauses are on one axis of time", async () => {
  await open();
  assert.ok(await inked("time"));
  const marks = card("time").locator("details.marks");
  await marks.locator("summary").click();
  assert.match(await marks.innerText(), /2026-01-01 01:00:00Z to 2026-01-01 01:20:00Z: paused/);
  assert.match(await marks.innerText(), /version 99 serving/);
  assert.match(await card("time").locator(".plot").getAttribute("aria-label"), /held-out · win/);
  const lines = await page.evaluate(async () => {
    const { timeline } = await import("/static/timeline.js");
    const measured = ["draw", "illegal", "loss", "win", "z"].map((name) => ({ kind: "line", name, at_ms: 1, value: 0.5 }));
    return timeline([...measured, { kind: "line", name: "reward", at_ms: 1, value: 0.5 }]).textContent;
  });
  assert.match(lines, /win/);
  const spaced = await page.evaluate(async () => {
    const { timeline } = await import("/static/timeline.js");
    const measured = [["held", "out win"], ["held out", "win"]].map(([name, metric], at) => ({ kind: "line", name, metric, at_ms: at, value: at }));
    return timeline(measured).querySelector(".plot").data.slice(1);
  });
  assert.deepEqual(spaced, [[0, null], [null, 1]], "names with spaces are two lines");
  const paused = await page.evaluate(async () => {
    const { timeline } = await import("/static/timeline.js");
    const commands = ["pause", "resume"].map((name, at) => ({ kind: "command", name, at_ms: 60_000 * (at + 1) }));
    return timeline([{ kind: "line", name: "reward", at_ms: 0, value: 0.5 }, ...commands]).querySelector(".plot").data[0];
  });
  assert.deepEqual(paused, [0, 60, 120], "a pause after the newest reward is on the axis");
  assert.doesNotMatch(lines, /Not drawn/);
  const marked = await page.evaluate(async () => { const { moments } = await import("/static/charts.js"); return [moments([0, 30], 30), moments([86340, 86400], 60)]; });
  assert.deepEqual(marked, [["00:00:00\n1970-01-01", "00:00:30"], ["23:59\n1970-01-01", "00:00\n1970-01-02"]]);
});

test("two versions are side by side, with the difference and its interval", async () => {
  await open("#/compare/");
  await card("compared").locator("[name=left_version]").fill("5");
  await card("compared").locator("[name=right_version]").fill("80");
  await card("compared").getByRole("button").click();
  await page.waitForFunction(() => /all tasks 0\.456 0\.760 \+0\.304 ± 0\.116 125 \/ 125/.test(document.querySelector('[data-card="rewards"]')?.innerText.replace(/\s+/g, " ")));
});

test("the advantage is next to the log-prob of each token", async () => {
  await open("#/find/fate%3Dtrained");
  await card("found").locator("td.id a").first().click();
  await card("conversation").waitFor();
  const advantage = (await text("trajectory")).match(/advantage (-?[\d.]+)/)[1];
  const turn = card("conversation").locator('[data-kind="TurnRecorded"]').first();
  assert.match(await turn.locator(".token").first().getAttribute("aria-label"), new RegExp(`log-prob -?[\\d.]+, chance .*, advantage ${advantage}`));
  await turn.locator("summary", { hasText: "As a table" }).click();
  assert.match((await turn.locator("tbody tr").first().innerText()).replace(/\s+/g, " "), new RegExp(` \\d+ -?[\\d.]+ [\\d.]+ % ${advantage}$`));
});

test("before the sink has made a table the page has the run of the settings, and says what is missing", async () => {
  await open("#/", { address: FRESH, tolerated: /400/ });
  assert.equal(await page.locator("#run").inputValue(), "orders");
  assert.match(await page.locator("main").innerText(), /the sink creates database and tables when it starts/);
});

test("a run that is gone is named, with those that are there", async () => {
  await open("?run=gone#/", { tolerated: /404/ });
  assert.match(await page.locator("main").innerText(), /No such run\s+no run 'gone' in namespace 'rollbus\.'; there are main\s+Choose one: main/);
  await page.locator("main a").click();
  await card("reward").waitFor();
});

test("what is written keeps the focus, the selection, what is open and what is typed", async () => {
  await open();
  await page.waitForSelector('#state[data-state="live"]');
  await card("metric loss").locator("summary").click();
  const link = card("steps").getByRole("link", { name: "97", exact: true });
  await link.focus();
  await page.evaluate(() => {
    window.chart = document.querySelector('[data-card="reward"] canvas');
    const row = [...document.querySelectorAll('[data-card="steps"] tbody tr')].find((each) => each.dataset.key === "95");
    getSelection().selectAllChildren(row.children[1]);
  });
  const at = "toDateTime64('2026-01-02 00:00:00', 3, 'UTC')";
  await insert(`INSERT INTO page.steps (namespace, run_id, step, state, model, base_version, policy_version, started_at, ended_at, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp) SELECT 'rollbus.', 'main', 100, 'completed', 'agent', 99, 100, ${at}, ${at}, 'training-steps', 0, 100, ${at}`);
  await page.waitForFunction(() => document.querySelector('[data-card="steps"] tbody tr').dataset.key === "100");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "97");
  assert.equal(await page.evaluate(() => getSelection().toString().trim()), "94 → 95");
  assert.ok(await page.evaluate(() => window.chart.isConnected), "the chart was made again");
  assert.equal(await card("metric loss").locator("details[open]").count(), 1);
  await insert("ALTER TABLE page.steps DELETE WHERE step = 100 SETTINGS mutations_sync = 2");
});

test("a run of 20,001 steps is drawn from a few hundred points, and its ends are not lost", async () => {
  let bytes = 0;
  await open("#/", { address: LONG });
  page.on("response", async (response) => { if (response.url().includes("/api/")) bytes += (await response.body().catch(() => "")).length; });
  await page.evaluate(() => dispatchEvent(new Event("rollbus:again")));
  await page.waitForTimeout(200);
  await drawn();
  assert.match(await page.locator(".figures").innerText(), /steps\s+20,001/);
  for (const name of ["reward", "metric loss", "time"]) assert.ok(await inked(name), name);
  const [points] = (await card("metric loss").locator(".plot").getAttribute("aria-label")).match(/\d+ points/);
  assert.ok(parseInt(points) <= 400, points);
  assert.match(await card("metric loss").innerText(), /high/);
  assert.ok(bytes > 0 && bytes < 400_000, `${bytes} bytes in one drawing`);
});

const insert = async (body) => assert.equal((await fetch(CLICKHOUSE, { method: "POST", body })).status, 200);

test("what is not in ClickHouse is said, not drawn", async () => {
  await open("#/trajectory/nobody");
  assert.match(await page.locator("main").innerText(), /Trajectory nobody is not in ClickHouse/);
});

async function inked(name) {
  const canvas = card(name).locator("canvas");
  await canvas.waitFor();
  return canvas.evaluate((each) => each.getContext("2d").getImageData(0, 0, each.width, each.height).data.some((value, at) => at % 4 === 3 && value > 0));
}

function contrast(...colours) {
  const [one, other] = colours.map((colour) => {
    const [red, green, blue] = colour.match(/[\d.]+/g).slice(0, 3).map((value) => value / 255).map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  }).sort((a, b) => b - a);
  return (one + 0.05) / (other + 0.05);
}
