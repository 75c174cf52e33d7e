// The page: which view the address names, the run that was chosen, and drawing again when something was written.

import { ask, liveAt, takeToken } from "./ask.js";
import { closeCharts, drawCharts } from "./charts.js";
import { make, short } from "./dom.js";
import { narrow } from "./flow.js";
import { watchHealth } from "./health.js";
import { watchKeys } from "./keys.js";
import { morphChildren } from "./morph.js";
import { watchSession } from "./session.js";
import { audit } from "./views/audit.js";
import { compare } from "./views/compare.js";
import { episode, event, group, step, trajectory } from "./views/drill.js";
import { dropped, find } from "./views/find.js";
import { overview } from "./views/overview.js";
import { pair } from "./views/pair.js";
import { queue } from "./views/queue.js";

const VIEWS = { find, queue, dropped, compare, audit, pair, step, group, trajectory, episode, event };
const DEPTH = { find: 0, queue: 0, dropped: 0, compare: 0, audit: 0, pair: 3, step: 1, group: 2, trajectory: 3, episode: 3, event: 4 };
// The trail keeps what is above.
const main = document.getElementById("main");
const trail = document.getElementById("trail");
const state = document.getElementById("state");
const runs = document.getElementById("run");
let live = null, shownAddress = null, drawing = 0, visited = [], runNames = [], isRefreshing = false, isStale = false;

function address() {
  const [kind, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  return Object.hasOwn(VIEWS, kind) ? { kind, id: decoded(rest.join("/")) } : { kind: "", id: "" };
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; } // a stray %
}

async function show() {
  const turn = ++drawing;
  const { kind, id } = address();
  main.setAttribute("aria-busy", "true");
  let content;
  try {
    content = kind ? await VIEWS[kind](runs.value, id) : await overview(runs.value);
  } catch (error) {
    content = error.unknown === "run" ? gone(error.message) : [make("h1", {}, "No answer"), make("p", { class: "error", role: "alert" }, error.message)];
  }
  if (turn !== drawing) return; // a newer one is on its way
  const isNew = shownAddress !== place();
  if (isNew) {
    closeCharts(main);
    main.replaceChildren(...content.filter(Boolean));
  } else morphChildren(main, content.filter(Boolean));
  drawCharts(main);
  main.setAttribute("aria-busy", "false");
  document.title = kind ? `${kind} ${short(id)} · rollbus` : "rollbus";
  follow(kind, id);
  if (isNew && shownAddress !== null) { main.focus({ preventScroll: true }); scrollTo(0, 0); }
  shownAddress = place();
}

const place = () => `${runs.value} ${location.hash}`;

/** Draw what is there again: once at a time, so that answers which take longer than the next news are drawn all the same. */
async function refresh() {
  isStale = true;
  if (isRefreshing) return;
  isRefreshing = true;
  try {
    while (isStale) { isStale = false; await show(); }
  } finally { isRefreshing = false; }
}

/** What is said instead of a view of a run that is not there. */
function gone(message) {
  return [make("h1", {}, "No such run"), make("p", { class: "error", role: "alert" }, message),
    make("p", { class: "empty" }, "Choose one: ", ...runNames.flatMap((name, at) => [at ? ", " : "", make("a", { href: `?${new URLSearchParams({ run: name })}#/` }, name)]))];
}

function follow(kind, id) {
  visited = kind ? [...visited.filter((each) => DEPTH[each.kind] < DEPTH[kind]), { kind, id }] : [];
  trail.replaceChildren(make("li", {}, make("a", { href: "#/", "aria-current": kind ? null : "page" }, "overview")), ...visited.map((each, at) =>
    make("li", {}, make("a", { href: `#/${each.kind}/${encodeURIComponent(each.id)}`, "aria-current": at === visited.length - 1 ? "page" : null }, ["find", "queue", "compare", "audit", "pair"].includes(each.kind) ? each.kind : `${each.kind} ${short(each.id)}`))));
}

function say(name, text) {
  state.dataset.state = name;
  state.textContent = text;
}

/** Hear of what is written. A browser has six connections to this server for all of its tabs: one in the background takes none. */
function listen() {
  live?.close();
  if (document.hidden) return;
  live = new EventSource(liveAt({ run: runs.value }));
  let first = true;
  live.addEventListener("pulse", async () => {
    say("live", "live");
    if (!first) await refresh();
    first = false;
  });
  live.addEventListener("down", (told) => {
    const [why] = JSON.parse(told.data);
    say("down", why.startsWith("no run ") ? "no such run" : "ClickHouse does not answer");
    first = false;
  });
  live.addEventListener("error", () => say("down", "server is gone"));
}

/** Choose the run that the address names, or the first one; returns whether another one was chosen before. */
function chooseRun() {
  const before = runs.value, name = new URLSearchParams(location.search).get("run") || runNames[0];
  if (![...runs.options].some((each) => each.value === name)) runs.append(make("option", { value: name }, name));
  runs.value = name;
  return runs.value !== before;
}

function showRun() {
  listen();
  show();
}

async function start() {
  takeToken();
  runNames = ["main"];
  try {
    const found = await ask("runs");
    if (found.length) runNames = found.map((row) => row.run_id);
  } catch { /* the view itself will say what is wrong */ }
  runs.replaceChildren(...runNames.map((name) => make("option", { value: name }, name)));
  chooseRun();
  runs.addEventListener("change", () => {
    history.pushState(null, "", `?${new URLSearchParams({ run: runs.value })}#/`);
    showRun();
  });
  addEventListener("popstate", () => { if (chooseRun()) showRun(); }); // back to where another run was looked at
  addEventListener("hashchange", () => { takeToken(); show(); });
  addEventListener("rollbus:again", refresh);
  document.addEventListener("visibilitychange", () => { listen(); if (!document.hidden) refresh(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawCharts(main, true));
  narrow.addEventListener("change", show);
  watchKeys();
  await watchSession(document.getElementById("session"));
  watchHealth(document.getElementById("health"), () => runs.value);
  await show();
  listen();
}

start();
