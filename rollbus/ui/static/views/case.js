// One case at a glance: what was asked, what came out, the error, the reward and from whom, what became of it and why.

import { ask, meaningOf } from "../ask.js";
import { added, prose, words } from "../conversation.js";
import { card, make, shown } from "../dom.js";
import { seen, told } from "../text.js";
import { fateOf, link } from "./links.js";

const BRIEF = 1_200;
// Characters of a question or an answer; all of it is in the conversation below.

/** The card of a trajectory, whose rewards may still be on their way, or of an episode without one. */
export async function caseOf({ trajectory = null, fate = null, events, rewards }) {
  const turns = events.filter((event) => event.kind === "TurnRecorded");
  const asked = turns.flatMap(added).filter((message) => message?.role === "user").map(words);
  const answered = turns.length ? words(turns.at(-1).completion) : "";
  const rows = [
    ["asked", asked.length ? [excerpt(asked[0]), asked.length > 1 ? make("p", { class: "label" }, `and ${shown(asked.length - 1)} more of the user`) : null] : "nothing was recorded"],
    ["answered", answered ? excerpt(answered) : turns.length ? "no text: see the tool calls below" : "nothing was recorded"],
    ...errors(events).map((error) => ["error", make("div", { class: "failure" }, told("p", {}, error))]),
    ["reward", rewardsIn(await rewards, trajectory)],
    ["fate", await fateIn(fate)],
  ];
  return card("The case", null, make("dl", { class: "case" }, rows.map(([name, content], at) =>
    make("div", { "data-key": `${at} ${name}` }, make("dt", {}, name), make("dd", {}, content)))), { wide: true, name: "case" });
}

const excerpt = (text) => (text.length > BRIEF ? told("p", {}, `${text.slice(0, BRIEF)}…`) : prose(text));

/** What ended it, and the tools that failed. */
function errors(events) {
  return [
    ...events.filter((event) => event.kind === "EpisodeEnded" && event.error).map((event) => event.error),
    ...events.filter((event) => event.kind === "ToolCalled" && event.tool_error !== null).map((event) => `${event.tool}: ${event.tool_error}`),
  ];
}

function rewardsIn(rewards, trajectory) {
  const total = trajectory?.reward ?? null;
  const valid = rewards.filter((row) => row.in_force ?? !row.retracted);
  if (total === null && !valid.length) return trajectory?.scoring === "failed" ? "none: its reward function failed" : "none yet";
  const parts = Object.entries(trajectory?.components ?? {});
  return [
    make("p", {}, total === null ? "not scored yet" : make("strong", {}, shown(total)), parts.length > 1 ? ` = ${parts.map(([name, value]) => `${name} ${shown(value)}`).join(", ")}` : null),
    valid.length ? make("ul", { class: "plain" }, valid.map((row) => make("li", { "data-key": row.event_id }, seen(row.name), ` ${shown(row.value)} from `, make("strong", {}, seen(row.principal || row.source)),
      row.principal && row.principal !== row.source ? seen(` (${row.source})`) : null, row.turn_event_id ? " on a turn" : null, row.comment ? [": ", make("q", {}, seen(row.comment))] : null, row.in_force === null ? make("span", { class: "label" }, " (not assembled yet)") : null)))
      : make("p", { class: "label" }, "computed; nobody reported one"),
  ];
}

async function fateIn(fate) {
  if (!fate) return "It became no trajectory: see what was decided below.";
  if (fate.fate === "trained") return ["It was ", fateOf(fate), " in step ", link("step", String(fate.step)), "."];
  if (fate.fate === "pending") return [make("span", { class: "fate pending" }, "It waits"), " for its group, its window or its step."];
  const { what, remedy } = await meaningOf(fate.reason);
  const detail = fate.detail && fate.detail !== fate.reason ? fate.detail : "";
  const isOfPrompts = fate.prompts > 1 && (fate.reason.includes("incomplete") || fate.reason === "group_mismatch");
  return [make("p", {}, fateOf(fate), `, in ${fate.stage}: it ${what}.`),
    isOfPrompts ? make("p", {}, `Same example, but ${shown(fate.prompts)} different prompts in ${shown(fate.attempts)} attempts.`) : null,
    detail ? told("p", { class: "label" }, detail) : null, remedy ? make("p", { class: "label" }, `→ ${remedy}`) : null];
}

/** The episodes of a family as a tree; nothing for one without sub-agents. */
export async function familyOf(run, episode) {
  const members = await ask("family", { run, episode });
  if (members.length < 2) return null;
  const ids = new Set(members.map((row) => row.episode_id));
  const below = Map.groupBy(members, (row) => (ids.has(row.parent_episode_id) ? row.parent_episode_id : row.episode_id === row.root_episode_id ? "" : ids.has(row.root_episode_id) ? row.root_episode_id : ""));
  const visited = new Set();
  const branch = (parent) => {
    const rows = (below.get(parent) ?? []).filter((row) => !visited.has(row.episode_id));
    for (const row of rows) visited.add(row.episode_id);
    return rows.length ? make("ul", { class: "plain family" }, rows.map((row) => make("li", { "data-key": row.episode_id },
      row.episode_id === episode ? make("strong", { "aria-current": "true" }, seen(nameOf(row))) : link(row.trajectory_id ? "trajectory" : "episode", row.trajectory_id || row.episode_id, nameOf(row)),
      ` reward ${shown(row.reward)} `, row.fate ? fateOf(row) : null, branch(row.episode_id)))) : null;
  };
  return card("Sub-agents", "Who called whom; each is an episode of its own.", branch(""), { wide: true, name: "family" });
}

const nameOf = (row) => [row.agent, row.task].filter(Boolean).join(" · ") || row.episode_id;
