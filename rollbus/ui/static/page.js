// The page: which view the address names, the run that was chosen, and drawing anew when something was written.

import { ask } from "./ask.js";
import { closeCharts } from "./charts.js";
import { make, short } from "./dom.js";
import { event, group, step, trajectory } from "./drill.js";
import { overview } from "./overview.js";

const VIEWS = { step, group, trajectory, event };
const ORDER = ["step", "group", "trajectory", "event"];
const main = document.getElementById("main");
const trail = document.getElementById("trail");
const state = document.getElementById("state");
const runs = document.getElementById("run");
let live = null, shownAddress = null, drawing = 0, visited = [];

function address() {
  const [kind, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  return ORDER.includes(kind) ? { kind, id: decoded(rest.join("/")) } : { kind: "", id: "" };
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
    content = [make("h1", {}, "No answer"), make("p", { class: "error", role: "alert" }, error.message)];
  }
  if (turn !== drawing) return; // a newer one is on its way
  const isNew = shownAddress !== location.hash;
  const opened = isNew ? [] : [...main.querySelectorAll("details[open]")].map((each) => each.closest("[data-card]")?.dataset.card);
  const place = scrollY;
  closeCharts();
  main.replaceChildren(...content.filter(Boolean));
  for (const name of opened) main.querySelector(`[data-card="${CSS.escape(name)}"] details`)?.setAttribute("open", "");
  main.setAttribute("aria-busy", "false");
  document.title = kind ? `${kind} ${short(id)} · rollbus` : "rollbus";
  follow(kind, id);
  if (isNew && shownAddress !== null) { main.focus({ preventScroll: true }); scrollTo(0, 0); } else scrollTo(0, place);
  shownAddress = location.hash;
}

function follow(kind, id) {
  visited = kind ? [...visited.filter((each) => ORDER.indexOf(each.kind) < ORDER.indexOf(kind)), { kind, id }] : [];
  trail.replaceChildren(make("li", {}, make("a", { href: "#/", "aria-current": kind ? null : "page" }, "overview")), ...visited.map((each, at) =>
    make("li", {}, make("a", { href: `#/${each.kind}/${encodeURIComponent(each.id)}`, "aria-current": at === visited.length - 1 ? "page" : null }, `${each.kind} ${short(each.id)}`))));
}

function say(name, text) {
  state.dataset.state = name;
  state.textContent = text;
}

function listen() {
  live?.close();
  live = new EventSource(`/api/live?${new URLSearchParams({ run: runs.value })}`);
  let first = true;
  live.addEventListener("pulse", async () => {
    say("live", "live");
    if (!first && !address().kind) await show();
    first = false;
  });
  live.addEventListener("down", () => { say("down", "ClickHouse does not answer"); first = false; });
  live.addEventListener("error", () => say("down", "server is gone"));
}

async function start() {
  let names = ["main"];
  try {
    const found = await ask("runs");
    if (found.length) names = found.map((row) => row.run_id);
  } catch { /* the view itself will say what is wrong */ }
  runs.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
  const asked = new URLSearchParams(location.search).get("run");
  if (names.includes(asked)) runs.value = asked;
  runs.addEventListener("change", () => {
    history.replaceState(null, "", `?${new URLSearchParams({ run: runs.value })}#/`);
    listen();
    show();
  });
  addEventListener("hashchange", show);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  await show();
  listen();
}

start();
