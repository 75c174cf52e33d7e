// Rows of the question `timeline` → one chart over time: lines of reward and evaluations, marks of versions and pauses.

import { chart } from "./charts.js";
import { clock, make } from "./dom.js";

const COLOURS = ["one", "two", "trained", "pending"];
const MOST_LINES = 2 * COLOURS.length; // the second time dashed

/** The chart, and in words what its marks are. */
export function timeline(moments) {
  const lines = moments.filter((row) => row.kind === "line");
  const titles = new Map(lines.map((row) => [keyOf(row), row.metric ? `${row.name} · ${row.metric}` : row.name]));
  const keys = [...titles.keys()].sort((one, other) => (titles.get(other) === "reward") - (titles.get(one) === "reward"));
  const rows = new Map();
  for (const row of lines) rows.set(row.at_ms, { ...rows.get(row.at_ms), at: row.at_ms, [keyOf(row)]: row.value });
  const inOrder = () => [...rows.values()].sort((one, other) => one.at - other.at);
  const served = moments.filter((row) => row.kind === "version").map((row) => ({ from: row.at_ms, colour: row.name === "serving" ? "trained" : "dropped", label: `version ${row.version} ${row.name.replaceAll("_", " ")}` }));
  const paused = pauses(moments.filter((row) => row.kind === "command"), inOrder().at(-1)?.at);
  if (rows.size) for (const at of paused.flatMap(({ from, to }) => [from, to])) rows.set(at, rows.get(at) ?? { at }); // the axis reaches them
  const drawn = chart("Over time", inOrder(), { title: "time", of: (row) => row.at }, keys.slice(0, MOST_LINES).map((key, at) => ({
    title: titles.get(key), of: (row) => row[key], colour: COLOURS[at % COLOURS.length], dash: at < COLOURS.length ? undefined : [6, 4], points: titles.get(key) !== "reward",
  })), { times: true, question: "timeline", marks: [...paused, ...served], height: 220 });
  const said = [...paused, ...served];
  return make("div", {}, drawn, keys.length > MOST_LINES ? make("p", { class: "label" }, `Not drawn: ${keys.slice(MOST_LINES).map((key) => titles.get(key)).join(", ")}`) : null,
    said.length ? make("details", { class: "marks" }, make("summary", {}, `Pauses: ${paused.length}, marks of versions: ${served.length}`), make("ul", {}, said.map((each) =>
      make("li", { "data-key": `${each.from} ${each.label}` }, `${clock(each.from)}${each.to ? ` to ${clock(each.to)}` : ""}: ${each.label}`)))) : null);
}

/** One line: an evaluation and its metric, either of which may have any letters; or the reward. */
const keyOf = ({ name, metric }) => JSON.stringify([name, metric]);

/** Commands in order → stretches of time in which the run took no batches; one that goes on ends where the lines end. */
export function pauses(commands, end) {
  const found = [];
  let since = null;
  for (const { name, at_ms: at } of [...commands].sort((one, other) => one.at_ms - other.at_ms)) {
    if (name === "resume" && since !== null) { found.push({ ...since, to: at }); since = null; }
    else if (name !== "resume" && since === null) since = { from: at, colour: "dropped", label: name === "stop" ? "stopped" : "paused" };
  }
  return since === null ? found : [...found, { ...since, to: Math.max(end ?? since.from, since.from + 1), label: `${since.label}, until now` }];
}
