// The strip under the header: which processes live, who is behind, how old the newest step is, and what is wrong.

import { askHealth } from "./ask.js";
import { make, shown } from "./dom.js";
import { morphChildren } from "./morph.js";

const AGAIN_MS = 5000;

/** Keep the strip up to date; `chosen` returns the run that is looked at. A page in the background asks for nothing. */
export function watchHealth(place, chosen) {
  const look = async () => {
    if (!document.hidden) {
      let answer;
      try { answer = await askHealth(); } catch { answer = { error: "the server is gone" }; }
      morphChildren(place, strip(answer, chosen()).filter(Boolean));
      place.setAttribute("aria-busy", "false");
    }
    setTimeout(look, AGAIN_MS);
  };
  look();
}

function strip({ health, error, verdict }, run) {
  if (error) return [make("p", { class: "alive unknown", role: "status" }, `Health is not known: ${error}`)];
  if (!health) return [];
  const { problems } = health;
  return [
    make("p", { class: "verdict", role: "status" }, verdict.text),
    make("ul", { "aria-label": "Processes" }, processes(health).map(([is, text]) => make("li", { class: `alive ${is}` }, text))),
    make("p", {}, lag(health.groups)), make("p", {}, step(health.runs.find((each) => each.run_id === run))),
    make("p", {}, `dead letters in Kafka: ${shown(health.dead_letters)}`),
    problems.length ? make("details", { "data-key": "problems" }, make("summary", {}, "What is wrong, and what to do"), make("ul", {}, problems.map((each) =>
      make("li", {}, make("span", { class: "alarm" }, each.alarm.replaceAll("_", " ")), ` ${each.what} → ${each.remedy}`)))) : null,
  ];
}

/** Living processes by kind, and each silent one that no later one has replaced. */
function processes({ processes, problems }) {
  const missed = new Set(problems.filter((each) => each.alarm === "silence").map((each) => each.subject));
  const alive = Map.groupBy(processes.filter((each) => each.state === "working" || each.state === "waiting"), (each) => each.kind);
  const each = [...alive].map(([kind, of]) => {
    const waiting = of.filter((one) => one.state === "waiting").length;
    return [waiting ? "no" : "", `${kind}${of.length > 1 ? ` × ${of.length}` : ""}${waiting ? `, ${of.length > 1 ? waiting : "its"} work does not move` : ""}`];
  });
  each.push(...processes.filter((one) => missed.has(one.process)).map((one) => ["no", `${one.kind} silent for ${age(one.beat_age_ms)}`]));
  return each.length ? each : [["unknown", "no process has written a heartbeat"]];
}

function lag(groups) {
  const worst = groups.find((each) => each.lag > 0);
  return worst ? `${worst.group} is ${shown(worst.lag)} behind in ${worst.topic}` : "nothing waits in Kafka";
}

const step = (run) => (run?.step_age_ms == null ? "no step yet" : `step ${run.step}, ${age(run.step_age_ms)} ago`);

/** Milliseconds in the largest unit, as `rollbus status` shows them. */
function age(ms) {
  const seconds = ms / 1000;
  for (const [limit, size, unit] of [[120, 1, "s"], [7200, 60, "min"], [172800, 3600, "h"]]) if (seconds < limit) return `${(seconds / size).toFixed(0)} ${unit}`;
  return `${(seconds / 86400).toFixed(0)} days`;
}
