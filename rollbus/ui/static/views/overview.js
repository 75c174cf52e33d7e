// The first page: does it learn, what became of the traffic, is training sound, does everything flow.

import { ask, askHealth, askLag } from "../ask.js";
import { chart } from "../charts.js";
import { card, make, many, percent, shown, table, time } from "../dom.js";
import { flow } from "../flow.js";
import { funnelOf } from "../funnel.js";
import { timeline } from "../timeline.js";
import { searchFor } from "./links.js";

export const METRICS = [
  ["loss", "loss", "Policy loss, with the KL penalty if there is one."],
  ["KL to reference", "reference_kl", "How far the policy went from the reference, in nats per token."],
  ["entropy", "entropy", "Of the next token, in nats. A fall to zero means that nothing is tried any more."],
  ["clip fraction", "clip_fraction", "Share of sampled tokens whose ratio the clip range held."],
  ["gradient norm", "grad_norm", "Before clipping."],
  ["mismatch KL", "mismatch_kl", "How far trainer and sampler differ on the same weights and tokens."],
];

const SPREADS = [
  ["rewards", "reward", "reward", "How they are spread over all scored trajectories."],
  ["lengths", "length", "sampled tokens", "Sampled tokens of a trajectory."],
  ["advantages", "advantage", "advantage", "Of the members of this run's groups."],
];

const BINS = 20;
// Of the question `distributions`, which gives those that hold a trajectory.

/** The run's overview, as cards. */
export async function overview(run) {
  const model = await modelOf(run);
  const [rewards, moments, fates, drops, lags, steps, metrics, sink, letters, decisions, groups, spread, status] = await Promise.all([
    ask("thin_rewards", { model }), ask("timeline", { run, model }),
    ask("fate_of_every_trajectory", { run }), ask("drops_by_reason", { run }), ask("staleness", { run }),
    ask("newest_steps", { run }), ask("thin_steps", { run }), ask("sink_lag"), ask("dead_letters_by_class"),
    ask("policy_history", { model, limit: 200 }), askLag(), ask("distributions", { run, model }), askHealth(),
  ]);
  return [
    make("h1", { class: "unseen" }, `Run ${run}`),
    ...funnelOf(status.funnels?.find((funnel) => funnel.run_id === run)),
    figures(rewards, fates, steps, sink, letters, metrics),
    card("Reward by policy version", "Mean with its 95 % interval, smoothed; dotted: a tenth is below, a tenth above.", rewardChart(rewards), { wide: true, name: "reward" }),
    card("Over time", "Mean reward and evaluations; ticks at the top are versions that began to serve, grounds are pauses.", timeline(moments), { wide: true, name: "time" }),
    card("Fates", "Every episode that began has one: trained, dropped with a reason, pending, or still open.", flow(fates, (row) => searchFor({ fate: row.fate, stage: row.stage, reason: row.reason })), { wide: true, name: "fates" }),
    card("Dropped", "Every unit that a stage dropped, by reason: events and episodes, too, which become no trajectory.", dropTable(drops), { wide: true, name: "drops" }),
    ...METRICS.map(([title, metric, remark]) => card(title, remark, metricChart(title, metrics.filter((row) => row.metric === metric)), { name: `metric ${title}` })),
    card("Staleness", "Steps between the weights that sampled a trajectory and those it trained.", stalenessChart(lags), { name: "staleness" }),
    ...SPREADS.map(([title, kind, what, remark]) => card(title, remark, spreadChart(title, what, binsOf(spread.filter((row) => row.kind === kind))), { name: `spread ${kind}` })),
    card("Newest steps", "Choose one to see its groups, trajectories and events.", stepTable(steps), { name: "steps" }),
    card("Consumer lag", "Offsets between what a consumer group has committed and the end of its topic, from Kafka.", groupTable(groups), { name: "groups lag" }),
    ...(decisions.length ? [card("Who serves", "The life of each version: every decision, with the difference in reward that it was made on.", decisionTable(decisions), { wide: true, name: "decisions" })] : []),
    card("Written to ClickHouse", "Offsets that were still ahead when the sink cut its newest range of each topic.", lagTable(sink), { wide: true, name: "lag" }),
    card("Dead letters", "Records that could not be processed; “rollbus dead-letters” tries them again.", letterTable(letters), { wide: true, name: "dead letters" }),
  ];
}

/** What the run trains: versions of another run's model have the same numbers. Empty, which means all, if nothing is known. */
async function modelOf(run) {
  return (await ask("runs")).find((row) => row.run_id === run)?.model ?? "";
}

function figures(rewards, fates, steps, sink, letters, metrics) {
  const all = fates.find((row) => row.fate === "all")?.trajectories ?? 0;
  const trained = fates.find((row) => row.fate === "trained")?.trajectories ?? 0;
  const last = rewards.at(-1), step = steps[0];
  const broken = brokenIn(metrics.filter((row) => row.metric === "loss"));
  const each = [
    ["mean reward", last ? shown(last.reward_mean) : "–", last ? versions(last) : "no score yet"],
    ["steps", shown(step?.steps ?? 0), broken ? make("span", { class: "alarm" }, `${shown(broken)} with a loss that is not a number`) : step ? `newest made version ${step.policy_version}` : "none yet"],
    ["episodes", shown(all), all ? `${percent(trained / all)} trained` : "none yet"],
    ["behind", shown(sink.reduce((sum, row) => sum + row.lag, 0)), "offsets not yet in ClickHouse"],
    ["dead letters", shown(letters.reduce((sum, row) => sum + row.records, 0)), letters.length ? `records, of ${many(letters.length, "kind")}` : "none"],
  ];
  return make("ul", { class: "figures", "aria-label": "At a glance" }, each.map(([name, value, remark]) =>
    make("li", {}, make("span", { class: "label" }, name), make("strong", {}, value), make("span", { class: "label" }, remark))));
}

const versions = (row) => `version${row.last_version === row.policy_version ? "" : "s"} ${shown(spanOf(row.policy_version, row.last_version))}`;
const spanOf = (first, last) => (first === last ? first : `${shown(first)}–${shown(last)}`);

function rewardChart(rewards) {
  const isThinned = rewards.some((row) => row.last_version > row.policy_version);
  const x = { title: isThinned ? "versions" : "version", of: (row) => row.policy_version, name: (row) => spanOf(row.policy_version, row.last_version) };
  return chart("Reward by policy version", rewards, x, [
    { title: "mean", of: (row) => row.reward_mean, colour: "one" },
    { title: "smoothed", of: (row) => row.smoothed, colour: "two" },
    { title: "low", of: (row) => row.reward_low, colour: "band-edge", width: 0.5 },
    { title: "high", of: (row) => row.reward_high, colour: "band-edge", width: 0.5 },
    { title: "p10", of: (row) => row.p10, colour: "quiet", width: 1, dash: [2, 4] },
    { title: "p90", of: (row) => row.p90, colour: "quiet", width: 1, dash: [2, 4] },
  ], { band: [4, 3], height: 250, question: "thin_rewards" });
}

/** A line over steps; where a point is of several, the ends of them as a band. */
function metricChart(title, rows) {
  if (!rows.length) return make("p", { class: "empty" }, "No step reported it.");
  const ends = ["low", "high"].map((name) => ({ title: name, of: (row) => row[name], colour: "band-edge", width: 0.5 }));
  const isThinned = rows.some((row) => row.last_step > row.step);
  const broken = rows.filter((row) => row.broken > 0);
  const drawn = chart(title, rows, { title: isThinned ? "steps" : "step", of: (row) => row.step, name: (row) => spanOf(row.step, row.last_step) }, [{ title, of: (row) => row.mean }, ...(isThinned ? ends : [])],
    { band: isThinned ? [3, 2] : null, gaps: true, question: "thin_steps", marks: broken.map((row) => ({ from: row.first_broken, colour: "dropped", tall: true })) });
  return broken.length ? [make("p", { class: "failure", role: "status" }, `No number in ${many(brokenIn(rows), "step")}, from step ${broken[0].first_broken} on: NaN or infinite. Red lines mark them.`), drawn] : drawn;
}

const brokenIn = (rows) => rows.reduce((sum, row) => sum + row.broken, 0);

const dropTable = (rows) => rows.length ? table("Dropped", [
  { title: "stage", of: (row) => row.stage },
  { title: "reason", of: (row) => make("a", { href: `#/dropped/${encodeURIComponent(`${row.stage}/${row.reason}`)}` }, row.reason.replaceAll("_", " ")) },
  { title: "unit", of: (row) => row.unit },
  { title: "units", of: (row) => shown(row.drops), number: true },
  { title: "trajectories", of: (row) => shown(row.trajectories), number: true },
  { title: "newest", of: (row) => time(row.newest), moment: true },
], rows, { hidden: true, key: (row) => `${row.stage} ${row.reason} ${row.unit} ${row.run_id}` }) : make("p", { class: "empty" }, "Nothing was dropped.");

function stalenessChart(rows) {
  return chart("Staleness", rows.map((row, at) => ({ ...row, at })), { title: "steps old", of: (row) => row.at, name: (row) => row.lag }, [
    { title: "trajectories", of: (row) => row.trajectories, width: 0 },
  ], { bars: 1, ticks: rows.map((row) => String(row.lag)), question: "staleness" });
}

/** A metric of a step; what is not a number is said, and is not what was not reported. */
const number = (row, name) => (row.not_finite.includes(name) ? make("span", { class: "alarm" }, "no number") : shown(row[name]));

/** Every bin between the least and the greatest value, those without a trajectory too: {from, to, width, trajectories}. */
export function binsOf(rows) {
  if (!rows.length) return [];
  const [first] = rows, width = first.to_value - first.from_value;
  const counts = new Map(rows.map((row) => [row.bin, row.trajectories]));
  const edge = (bin) => Number((first.from_value + (bin - first.bin) * width).toPrecision(12)) || 0;
  return Array.from({ length: width ? BINS : 1 }, (_, bin) => ({ from: edge(bin), to: edge(bin + 1), width, trajectories: counts.get(bin) ?? 0 }));
}

/** Bars on an axis of numbers, each as wide as what it counts. */
function spreadChart(title, what, bins) {
  const edge = (value, width) => shown(Math.abs(value) < width / 1e6 ? 0 : value);
  const x = { title: what, of: ({ from, to }) => (from + to) / 2, name: ({ from, to, width }) => (width ? `${edge(from, width)} to ${edge(to, width)}` : from) };
  return chart(title, bins, x, [{ title: "trajectories", of: (bin) => bin.trajectories, width: 0 }], { bars: bins[0]?.width || 1, question: "distributions" });
}

const stepTable = (steps) => steps.length ? table("Newest steps", [
  { title: "step", of: (row) => make("a", { href: `#/step/${row.step}` }, String(row.step)), number: true },
  { title: "version", of: (row) => `${row.base_version} → ${row.policy_version}`, number: true },
  { title: "trained", of: (row) => shown(row.trained), number: true },
  { title: "dropped", of: (row) => shown(row.dropped), number: true },
  { title: "loss", of: (row) => number(row, "loss"), number: true },
  { title: "entropy", of: (row) => number(row, "entropy"), number: true },
], steps, { hidden: true, key: (row) => row.step }) : make("p", { class: "empty" }, "No step yet.");

const decisionTable = (rows) => table("Who serves", [
  { title: "", of: (row) => String(row.number), number: true },
  { title: "decided", of: (row) => time(row.decided_at), moment: true },
  { title: "action", of: (row) => row.action },
  { title: "version", of: (row) => row.version ?? "–", number: true },
  { title: "serving", of: (row) => row.serving ?? "–", number: true },
  { title: "canary", of: (row) => row.canary === null ? "–" : `${row.canary}, ${percent(row.share)}`, number: true },
  { title: "why", of: (row) => row.detail ? `${row.reason}: ${row.detail}` : row.reason },
  { title: "canary − serving", of: (row) => row.effect === null ? "–" : `${shown(row.effect)} [${shown(row.low)}, ${shown(row.high)}]`, number: true },
  { title: "episodes", of: (row) => row.effect === null ? "–" : `${shown(row.canary_episodes)} / ${shown(row.serving_episodes)}`, number: true },
], rows.toReversed(), { hidden: true, key: (row) => row.number });

const groupTable = ({ groups, error }) => error ? make("p", { class: "error", role: "status" }, error) : groups.length ? table("Consumer lag", [
  { title: "consumer", of: (row) => row.group },
  { title: "topic", of: (row) => row.topic },
  { title: "behind", of: (row) => shown(row.lag), number: true },
  { title: "readers", of: (row) => (row.members ? shown(row.members) : "nobody"), number: true },
], groups, { hidden: true }) : make("p", { class: "empty" }, "No stage, trainer or sink has committed anything yet.");

const lagTable = (rows) => rows.length ? table("Written to ClickHouse", [
  { title: "topic", of: (row) => row.topic },
  { title: "behind", of: (row) => shown(row.lag), number: true },
  { title: "records", of: (row) => shown(row.records), number: true },
  { title: "newest write", of: (row) => time(row.newest_write), moment: true },
], rows, { hidden: true }) : make("p", { class: "empty" }, "The sink has written nothing yet.");

const letterTable = (rows) => rows.length ? table("Dead letters", [
  { title: "stage", of: (row) => row.stage },
  { title: "topic", of: (row) => row.topic },
  { title: "error", of: (row) => row.error_class },
  { title: "records", of: (row) => shown(row.records), number: true },
  { title: "refused by", of: (row) => row.refused_by.join(", ") },
  { title: "newest", of: (row) => row.newest_message },
], rows, { hidden: true }) : make("p", { class: "empty" }, "None.");
