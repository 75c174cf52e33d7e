// Looking for episodes by what is known of them, and from a reason to what was dropped for it.

import { ask } from "../ask.js";
import { card, make, shown, table, time } from "../dom.js";
import { keyed } from "../keys.js";
import { isJudged } from "./judging.js";
import { fateOf, labels, link, searchFor } from "./links.js";

const FIELDS = [
  ["task", "task"], ["label", "label"], ["label_value", "its value"], ["version", "version", { inputmode: "numeric", pattern: "[0-9]*" }],
  ["reward_from", "reward from", { inputmode: "decimal", pattern: "-?[0-9.]*" }], ["reward_to", "to", { inputmode: "decimal", pattern: "-?[0-9.]*" }],
  ["fate", "fate", { options: ["", "trained", "dropped", "pending"] }], ["stage", "dropped in"], ["reason", "for the reason"],
  ["text", "said"], ["tool", "called the tool"], ["error", "failed with", { placeholder: "words, or *" }],
  ["judged", "judged", { options: ["", "yes", "no"] }], ["judge", "judged by"], ["since", "since (UTC)", { placeholder: "2026-01-31 12:00" }], ["until", "until (UTC)", { placeholder: "2026-02-01" }],
  ["id", "id", { placeholder: "episode, trajectory, example or group" }], ["data_set", "data set", { list: "data-sets" }],
];
const ROWS = 100;

/** Episodes that match what the address says; without anything, the newest. */
export async function find(run, asked) {
  const values = Object.fromEntries(new URLSearchParams(asked));
  const skip = Number(values.skip ?? 0);
  let rows = [], refused = null;
  const sets = await ask("data_sets");
  try {
    rows = await ask("find_episodes", { run, limit: ROWS, ...values, ...(values.after ? { skip: 0 } : {}) });
  } catch (error) {
    if (error.unknown) throw error;
    refused = make("p", { class: "error", role: "alert" }, error.message);
  }
  const all = rows[0]?.matches ?? 0;
  return [
    make("h1", {}, "Find episodes"),
    card("What is known of them", "Empty fields match everything. The address of this page is the search: pass it on.", form(values, sets), { wide: true, name: "search" }),
    card("Episodes", refused ? null : all ? `${shown(skip + 1)} to ${shown(skip + rows.length)} of ${shown(all)}, the newest first. A search is a link: keep it as a bookmark.` : "None matches.", refused ?? make("div", { class: "all" }, all ? make("p", {}, make("a", { href: searchFor({ ...values, skip: "", after: "", at: skip || "" }, "queue"), class: "act", ...keyed("o") }, "Look at one after another")) : null, episodes(rows), pages(values, skip, all, rows), take(run, values, all)), { wide: true, name: "found" }),
  ];
}

function form(values, sets) {
  return make("form", { class: "search", role: "search", onsubmit: (event) => {
    event.preventDefault();
    const given = Object.fromEntries([...new FormData(event.currentTarget)].map(([name, value]) => [name, value.trim()]));
    location.hash = searchFor({ ...given, reason: given.reason.replaceAll(" ", "_") }); // as the page writes them
  } }, FIELDS.map(([name, title, { options, ...more } = {}]) => make("label", { "data-key": `field ${name}` }, title,
    options ? make("select", { name }, options.map((each) => make("option", { value: each, selected: each === (values[name] ?? "") }, each || "any")))
      : make("input", { name, value: values[name] ?? "", autocomplete: "off", spellcheck: "false", ...more }))),
  make("datalist", { id: "data-sets" }, sets.map((row) => make("option", { value: row.data_set }))), make("button", { type: "submit" }, "Find"));
}

const episodes = (rows) => table("Episodes", [
  { title: "trajectory", of: (row) => link("trajectory", row.trajectory_id), id: true },
  { title: "started", of: (row) => time(row.started_at), moment: true },
  { title: "task", of: (row) => (row.example_id ? `${row.task} · ${row.example_id}` : row.task) },
  { title: "labels", of: (row) => labels(row.labels) },
  { title: "version", of: (row) => shown(row.policy_version), number: true },
  { title: "reward", of: (row) => shown(row.reward), number: true },
  { title: "judged by", of: (row) => isJudged(row) || "–" },
  { title: "fate", of: (row) => fateOf(row) },
  { title: "step", of: (row) => (row.fate === "trained" ? link("step", String(row.step)) : "–"), number: true },
], rows, { hidden: true, key: (row) => row.trajectory_id });

/** The next page follows the last row of this one, so that what is written meanwhile moves nothing. */
function pages(values, skip, all, rows) {
  const to = (start, after, text) => make("a", { href: searchFor({ ...values, skip: start || "", after }) }, text);
  return make("p", { class: "pages" }, skip ? to(Math.max(0, skip - ROWS), "", "newer") : null, skip && skip + ROWS < all ? " · " : null, skip + ROWS < all ? to(skip + ROWS, rows.at(-1)?.trajectory_id ?? "", "older") : null);
}

/** The commands that export what was found. */
function take(run, values, all) {
  const where = condition(values);
  if (!all || where === null) return null;
  const chosen = [`--run ${quoted(run)}`, values.data_set && `--data-set ${quoted(values.data_set)}`, where && `--where ${quoted(where)}`].filter(Boolean).join(" ");
  return make("details", { "data-key": "take" }, make("summary", {}, "Take them as a data set"), make("pre", { tabindex: 0 },
    ["sft", "dpo", "evaluation"].map((kind) => `rollbus export ${kind} out/${kind} ${chosen}`).join("\n")));
}

/** A word of a shell. */
function quoted(text) {
  if (/^[\w.-]+$/.test(text)) return text;
  return text.includes("!") ? `'${text.replaceAll("'", "'\\''")}'` : `"${text.replace(/["\\$`]/g, "\\$&")}"`; // ! is history between "
}

/** A search as a condition of `rollbus export`; null if it cannot be one, as with words of the conversation. */
export function condition(values) {
  if (["text", "stage", "tool", "error", "judged", "judge"].some((name) => values[name])) return null;
  const text = (value) => `'${value.replace(/\\/g, "\\\\").replace(/'/g, "\\'")}'`;
  const parts = [
    ["task", (value) => `task = ${text(value)}`],
    ["label", (value) => (values.label_value ? `labels[${text(value)}] = ${text(values.label_value)}` : `mapContains(labels, ${text(value)})`)],
    ["version", (value) => `policy_version = ${Number(value)}`],
    ["reward_from", (value) => `reward >= ${Number(value)}`], ["reward_to", (value) => `reward <= ${Number(value)}`],
    ["fate", (value) => `fate = ${text(value)}`], ["reason", (value) => `reason = ${text(value)}`],
    ["since", (value) => `started_at >= parseDateTime64BestEffort(${text(value)}, 3, 'UTC')`], ["until", (value) => `started_at < parseDateTime64BestEffort(${text(value)}, 3, 'UTC')`],
    ["id", (value) => `(${text(value)} IN (episode_id, trajectory_id, ifNull(example_id, '')) OR group_hint = ${text(`group:${value}`)})`],
  ];
  return parts.filter(([name]) => values[name]).map(([name, make]) => make(values[name])).join(" AND ");
}

/** What a stage dropped for one reason: STAGE/REASON. */
export async function dropped(run, id) {
  const [stage, reason] = id.split("/");
  const units = await ask("dropped_units", { run, stage, reason: reason ?? "" });
  return [
    make("h1", {}, `Dropped in ${stage}: ${(reason ?? "").replaceAll("_", " ")}`),
    card("Units", units.length ? `${shown(units.length)} of ${shown(units[0].matches)}, the newest first.` : "None.", table("Units", [
      { title: "unit", of: (row) => row.unit },
      { title: "id", of: (row) => link(row.unit, row.unit_id), id: true },
      { title: "trajectories", of: (row) => shown(row.trajectories), number: true },
      { title: "detail", of: (row) => row.detail || "–" },
      { title: "dropped", of: (row) => time(row.dropped_at), moment: true },
    ], units, { hidden: true, key: (row) => `${row.unit} ${row.unit_id}` }), { wide: true, name: "units" }),
    make("p", { class: "wide" }, make("a", { href: searchFor({ fate: "dropped", stage, reason }) }, "Their trajectories, as episodes to look through")),
  ];
}
