// From a step to its groups, to a group's trajectories, to a trajectory's conversation, to the event as it is stored.

import { ask } from "../ask.js";
import { card, facts, make, shown, table, time } from "../dom.js";
import { conversation } from "../conversation.js";
import { parse } from "../exact.js";
import { told } from "../text.js";
import { caseOf, familyOf } from "./case.js";
import { judging } from "./judging.js";
import { fateOf, labels, link } from "./links.js";
import { pairOf } from "./pair.js";

const nothing = (what) => [make("h1", {}, "Not found"), make("p", { class: "empty" }, `${what} is not in ClickHouse. The sink may not have written it yet.`)];
const placeOf = (row) => `${row.kafka_topic} ${row.kafka_partition}:${row.kafka_offset}`;

/** A step and the groups it was made of. */
export async function step(run, number) {
  const [groups, steps] = await Promise.all([ask("groups_of_step", { run, step: number }), ask("newest_steps", { run, step: number, limit: 1 })]);
  const [found] = steps;
  if (!found && !groups.length) return nothing(`Step ${number} of run ${run}`);
  return [
    make("h1", {}, `Step ${number}`),
    found ? card("What it did", null, facts([
      ["weights", `${found.base_version} → ${found.policy_version}`], ["trained", found.trained], ["dropped", found.dropped], ["loss", found.loss],
      ["entropy", found.entropy], ["gradient norm", found.grad_norm], ["clip fraction", found.clip_fraction], ["took", `${shown(found.duration_ms)} ms`], ["no number", found.not_finite.length ? make("span", { class: "alarm" }, found.not_finite.join(", ")) : null],
    ]), { wide: true, name: "step" }) : null,
    card("Groups", "In the order of the batch.", table("Groups", [
      { title: "group", of: (row) => link("group", row.group_id), id: true },
      { title: "task", of: (row) => row.task },
      { title: "mean reward", of: (row) => shown(row.reward_mean), number: true },
      { title: "deviation", of: (row) => shown(row.reward_std), number: true },
      { title: "trained", of: (row) => shown(row.trained), number: true },
      { title: "dropped", of: (row) => shown(row.dropped), number: true },
      { title: "mean lag", of: (row) => shown(row.lag_mean), number: true },
      { title: "sampled tokens", of: (row) => shown(row.sampled_tokens), number: true },
    ], groups, { hidden: true }), { wide: true, name: "groups" }),
  ];
}

/** A group and its trajectories. */
export async function group(run, id) {
  const members = await ask("members_of_group", { run, group: id });
  if (!members.length) return nothing(`Group ${id} of run ${run}`);
  const reached = Math.max(1e-9, ...members.map((row) => Math.abs(row.advantage)));
  return [
    make("h1", {}, "Group ", make("code", {}, id)),
    card("Trajectories", "Compared with one another; the advantage is what was trained.", table("Trajectories", [
      { title: "trajectory", of: (row) => link("trajectory", row.trajectory_id), id: true },
      { title: "reward", of: (row) => shown(row.reward), number: true },
      { title: "advantage", of: (row) => advantage(row.advantage, reached), number: true },
      { title: "components", of: (row) => shown(row.components) },
      { title: "sampled by", of: (row) => (row.oldest_version === row.newest_version ? `version ${row.newest_version}` : `versions ${row.oldest_version}–${row.newest_version}`) },
      { title: "tokens", of: (row) => shown(row.sampled_tokens), number: true },
      { title: "fate", of: fateOf },
      { title: "step", of: (row) => (row.fate === "trained" ? link("step", String(row.step)) : "–"), number: true },
      { title: "lag", of: (row) => (row.fate === "trained" ? shown(row.lag) : "–"), number: true },
      { title: "beside", of: (row) => (row === members[0] ? "the best" : make("a", { href: pairOf(row.trajectory_id, members[0].trajectory_id), "aria-label": `${row.trajectory_id} beside the best of the group` }, "the best")) },
    ], members, { hidden: true }), { wide: true, name: "members" }),
  ];
}

function advantage(value, reached) {
  const bar = make("span", { class: value < 0 ? "bar below" : "bar above", "aria-hidden": "true" });
  bar.style.width = `${Math.round((36 * Math.abs(value)) / reached)}px`;
  return make("span", { class: "advantage" }, bar, ` ${shown(value)}`);
}

/** A trajectory: the case in plain words, a place to judge it, what was said, and then all that is known of it. */
export async function trajectory(run, id) {
  const [[found], events, [fate], decided, alike, replays] = await Promise.all([
    ask("trajectory", { run, trajectory: id }), ask("conversation", { trajectory: id }), ask("fate_of_case", { run, trajectory: id }),
    ask("why_not_trained", { run, id }), ask("attempts_alike", { trajectory: id }), ask("in_replays", { run, trajectory: id }),
  ]);
  if (!found) return nothing(`Trajectory ${id}`);
  const rewards = ask("rewards_of_episode", { trajectory: id, episode: found.episode_id });
  const [atAGlance, judgement, family] = await Promise.all([caseOf({ trajectory: found, fate, events, rewards }), judging(run, found, rewards), familyOf(run, found.episode_id)]);
  return [
    make("h1", {}, "Trajectory ", make("code", {}, id)),
    atAGlance,
    judgement,
    family,
    card("Conversation", "Sampled tokens are coloured by their log-prob: the deeper, the less likely the sampler found them.", conversation(events, found.advantage), { wide: true, name: "conversation" }),
    decisions(decided),
    replays.length > 1 ? inReplays(replays) : null,
    alike.length ? card("Other attempts at this prompt", "By any version, the newest first.", make("ul", { class: "plain" }, alike.map((row) => make("li", { "data-key": row.trajectory_id },
      link("trajectory", row.trajectory_id), ` version ${shown(row.policy_version)}, reward ${shown(row.reward)} `, make("a", { href: pairOf(id, row.trajectory_id), "aria-label": `side by side with ${row.trajectory_id}` }, "side by side")))), { wide: true, name: "alike" }) : null,
    card("What it is", null, facts([
      ["task", found.task], ["example", found.example_id], ["episode", link("episode", found.episode_id, found.episode_id)], ["agent", found.agent], ["labels", labels(found.labels)],
      ["started", time(found.started_at)], ["ended", endOf(found)], ["turns", found.turns], ["tokens", found.tokens],
      ["sampled", found.sampled_tokens], ["reward", found.reward], ["components", shown(found.components)],
      ["advantage", found.advantage], ["group", found.group_id ? link("group", found.group_id) : null],
      ["not trainable", found.trainable ? null : found.untrainable_reason || "yes"], ["in the log", placeOf(found)],
    ]), { wide: true, name: "trajectory" }),
  ];
}

const CLOSED = { ended: "without a reason", inactivity: "given up: no end came, and nothing else", pause: "paused, and nothing resumed it" };
// What closed an episode that gave no reason.
const endOf = (row) => (row.stop_reason ? row.stop_reason.replaceAll("_", " ") : CLOSED[row.closed_by] ?? row.closed_by);

/** What became of it under other rewards or groups. */
const inReplays = (rows) => card("In this log and in replays", "The same trajectory under what each was replayed with.", table("In this log and in replays", [
  { title: "namespace", of: (row) => row.namespace },
  { title: "reward", of: (row) => shown(row.reward), number: true },
  { title: "advantage", of: (row) => shown(row.advantage), number: true },
  { title: "admitted", of: (row) => (row.is_admitted ? "into a batch" : row.reason ? `no: ${row.reason.replaceAll("_", " ")}` : "not yet") },
], rows, { hidden: true, key: (row) => row.namespace }), { wide: true, name: "replays" });

/** An episode, also one that became no trajectory: what was decided about it, and what was said. */
export async function episode(run, id) {
  const [events, decided, found, rewards] = await Promise.all([
    ask("conversation", { episode: id }), ask("why_not_trained", { run, id }), ask("find_episodes", { run, id }), ask("rewards_of_episode", { episode: id }),
  ]);
  if (!events.length && !decided.length) return nothing(`Episode ${id}`);
  return [
    make("h1", {}, "Episode ", make("code", {}, id)),
    found.length ? null : await caseOf({ events, rewards }),
    card("Trajectories", found.length ? null : "It became none.", found.length ? make("ul", {}, found.map((row) => make("li", {}, link("trajectory", row.trajectory_id), " ", fateOf(row)))) : null, { wide: true, name: "trajectories" }),
    await familyOf(run, id),
    decisions(decided),
    card("Conversation", "As far as it was recorded.", conversation(events), { wide: true, name: "conversation" }),
  ];
}

const decisions = (rows) => card("What was decided", "In order, with the record that says so.", table("What was decided", [
  { title: "stage", of: (row) => row.stage },
  { title: "what", of: (row) => row.what },
  { title: "detail", of: (row) => row.detail || "–" },
  { title: "in the log", of: placeOf, id: true },
], rows, { hidden: true }), { wide: true, name: "decided" });

/** An event: each of its rows, and what it influenced. */
export async function event(run, id) {
  const [rows, influenced] = await Promise.all([ask("event", { id }), ask("lineage_of_event", { id })]);
  if (!rows.length) return nothing(`Event ${id}`);
  const reached = influenced.filter((row) => row.trajectory_id);
  return [
    make("h1", {}, "Event ", make("code", {}, id)),
    card("What it influenced", null, reached.length ? table("What it influenced", [
      { title: "trajectory", of: (row) => link("trajectory", row.trajectory_id), id: true },
      { title: "run", of: (row) => row.run_id || "–" },
      { title: "group", of: (row) => (row.group_id ? link("group", row.group_id) : "–"), id: true },
      { title: "step", of: (row) => (row.step ? link("step", String(row.step)) : "–"), number: true },
      { title: "fate", of: (row) => (row.fate ? fateOf({ fate: row.fate, reason: row.reason ?? "" }) : "–") },
      { title: "made version", of: (row) => shown(row.policy_version), number: true },
    ], reached, { hidden: true }) : make("p", { class: "empty" }, "No trajectory has it yet."), { wide: true, name: "influenced" }),
    ...rows.map((row) => card(row.table.replaceAll("_", " "), "As stored.", make("div", {}, told("pre", { tabindex: 0 }, pretty(row.row))), { wide: true, name: `raw ${row.table}` })),
  ];
}

function pretty(text) {
  const row = parse(text);
  for (const [name, value] of Object.entries(row)) {
    if (typeof value === "string" && /^[[{]/.test(value)) {
      try { row[name] = parse(value); } catch { /* text that only looks like JSON stays text */ }
    }
  }
  return JSON.stringify(row, null, 2).replace(/\[\s+(-?[\d.e+-]+(?:,\s+-?[\d.e+-]+)*)\s+\]/g, (_, list) => `[${list.replace(/\s+/g, " ")}]`);
}
