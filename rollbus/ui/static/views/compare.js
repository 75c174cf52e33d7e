// Two runs or two versions side by side: rewards with the difference, fates, and the metrics of their steps in one chart.

import { ask } from "../ask.js";
import { chart } from "../charts.js";
import { card, make, percent, shown, table } from "../dom.js";
import { METRICS } from "./overview.js";

/** The address of a comparison; a version may be empty. */
export const comparing = (values) => `#/compare/${encodeURIComponent(new URLSearchParams(values))}`;

/** LEFT and RIGHT, each a run and perhaps a version of its model. */
export async function compare(run, asked) {
  const given = Object.fromEntries(new URLSearchParams(asked));
  const runs = await ask("runs");
  const sides = ["left", "right"].map((side) => {
    const name = given[side] ?? run;
    return { run: name, version: given[`${side}_version`] ?? "", model: runs.find((row) => row.run_id === name)?.model ?? "" };
  });
  const [left, right] = sides;
  const isSame = left.run === right.run;
  const [rewards, ...each] = await Promise.all([
    sides.some((side) => side.model === "") ? [] : ask("side_by_side", {
      left_model: left.model, right_model: right.model,
      ...(left.version === "" ? {} : { left_version: left.version }), ...(right.version === "" ? {} : { right_version: right.version }),
    }),
    ...sides.map((side) => Promise.all([ask("fate_of_every_trajectory", { run: side.run }), ask("thin_steps", { run: side.run }), ask("thin_rewards", { model: side.model })])),
  ]);
  const names = sides.map((side) => (side.version === "" ? side.run : `${isSame ? "" : `${side.run} `}version ${side.version}`));
  return [
    make("h1", {}, `${names[0]} and ${names[1]}`),
    card("What is compared", "A run with all of its versions, or one version of a run's model.", form(sides, runs), { wide: true, name: "compared" }),
    card("Rewards", "The difference is right − left, with its 95 % interval; the interval is missing where a side has fewer than two episodes, or all of them have one reward.", rewardTable(rewards, names), { wide: true, name: "rewards" }),
    ...(isSame ? [] : [
      card("Fates", "Share of the trajectories.", fateTable(each.map(([fates]) => fates), names), { wide: true, name: "both fates" }),
      card("Reward by policy version", null, both(each.map(([, , found]) => found.map((row) => ({ at: row.policy_version, to: row.last_version, mean: row.reward_mean }))), names, "version", "thin_rewards"), { wide: true, name: "both rewards" }),
      ...METRICS.map(([title, metric, remark]) => card(title, remark, both(each.map(([, steps]) => steps.filter((row) => row.metric === metric).map((row) => ({ at: row.step, to: row.last_step, mean: row.mean }))), names, "step", "thin_steps", title), { name: `both ${title}` })),
    ]),
  ];
}

function form(sides, runs) {
  return make("form", { class: "search", onsubmit: (event) => {
    event.preventDefault();
    location.hash = comparing(new FormData(event.currentTarget));
  } }, ["left", "right"].map((side, at) => [
    make("label", { "data-key": side }, side, make("select", { name: side }, runs.map(({ run_id: name }) => make("option", { value: name, selected: name === sides[at].run }, name)))),
    make("label", { "data-key": `${side} version` }, `${side} version`, make("input", { name: `${side}_version`, value: sides[at].version, inputmode: "numeric", pattern: "[0-9]*", placeholder: "all", autocomplete: "off" })),
  ]).flat(), make("button", { type: "submit" }, "Compare"));
}

const rewardTable = (rows, [left, right]) => rows.length ? table("Rewards", [
  { title: "of", of: (row) => (row.kind === "component" ? `component ${row.name}` : row.name) },
  { title: left, of: (row) => shown(row.left_mean), number: true },
  { title: right, of: (row) => shown(row.right_mean), number: true },
  { title: "difference", of: (row) => (row.difference === null ? "–" : `${row.difference > 0 ? "+" : ""}${shown(row.difference)}${row.margin === null ? "" : ` ± ${shown(row.margin)}`}`), number: true },
  { title: "episodes", of: (row) => `${shown(row.left_count)} / ${shown(row.right_count)}`, number: true },
], rows, { hidden: true, key: (row) => `${row.kind} ${row.name}` }) : make("p", { class: "empty" }, "Neither side has a reward.");

function fateTable(fates, [left, right]) {
  const found = new Map();
  fates.forEach((rows, at) => rows.filter((row) => row.fate !== "all").forEach((row) => {
    const name = [row.fate, row.stage && `in ${row.stage}`, row.reason && `: ${row.reason.replaceAll("_", " ")}`].filter(Boolean).join(" ").replace(" :", ":");
    found.set(name, (found.get(name) ?? [null, null]).with(at, row));
  }));
  const side = (at) => (row) => (row[1][at] ? `${shown(row[1][at].trajectories)} · ${percent(row[1][at].share)}` : "–");
  return table("Fates", [{ title: "fate", of: ([name]) => name }, { title: left, of: side(0), number: true }, { title: right, of: side(1), number: true }], [...found], { hidden: true, key: ([name]) => name });
}

/** Two series over one axis, each with its own points. */
function both(sides, [left, right], x, question, title = "Reward by policy version") {
  const rows = new Map();
  sides.forEach((points, at) => points.forEach((point) => rows.set(point.at, (rows.get(point.at) ?? [null, null]).with(at, point.mean))));
  const ordered = [...rows].sort(([one], [other]) => one - other);
  const isThinned = sides.flat().some((point) => point.to > point.at);
  return chart(title, ordered, { title: isThinned ? `from ${x}` : x, of: ([at]) => at }, [{ title: left, of: ([, means]) => means[0], colour: "one" }, { title: right, of: ([, means]) => means[1], colour: "two" }], { question });
}
