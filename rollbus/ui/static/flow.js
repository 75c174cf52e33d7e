// Fates of episodes as a flow: all → trained, dropped by which stage, pending or open → the reasons. Widths are counts.
// In a narrow window every node has a line of its own, so that each label has the rest of the width.

import { draw, make, percent, shown, table } from "./dom.js";

const BAR = 12, LEAST = 3, SLOT = 26, TALL = 170;
// A slot is what a node with its line of text needs.
const WIDE = { width: 1100, columns: [0, 380, 760] }, NARROW = { width: 370, columns: [0, 40, 92] };
export const narrow = matchMedia("(max-width: 620px)");

/** Rows of the question fate_of_every_trajectory → a figure; `to` gives the address of the members of one. */
export function flow(rows, to) {
  const parts = rows.filter((row) => row.fate !== "all" && row.trajectories > 0);
  const all = parts.reduce((sum, row) => sum + row.trajectories, 0);
  if (!all) return make("p", { class: "empty" }, "No episode yet.");
  const { width, columns } = narrow.matches ? NARROW : WIDE;
  const middle = merged(parts, to);
  const leaves = middle.flatMap((each) => each.reasons);
  const scale = TALL / all;
  for (const each of [...middle, ...leaves]) each.thick = Math.max(LEAST, each.count * scale);
  if (narrow.matches) placeInLines(middle);
  else placeBeside(middle, leaves);
  const height = Math.max(TALL, ...[...middle, ...leaves].map((each) => each.top + Math.max(each.thick, SLOT)));
  const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": spoken(middle, all), class: "flow" });
  const links = draw("g"), bars = draw("g"), words = draw("g");
  picture.append(links, bars, words);
  const total = { name: "began", count: all, top: narrow.matches ? SLOT : (height - TALL) / 2, thick: TALL, kind: "all" };
  node(bars, words, total, columns[0], all);
  let from = total.top;
  for (const each of middle) {
    const share = each.count * scale;
    link(links, columns[0] + BAR, from, share, columns[1], each.top, each.thick, each.kind, `${each.name}: ${shown(each.count)}`);
    from += share;
    node(bars, words, each, columns[1], all);
    let inside = each.top;
    for (const leaf of each.reasons) {
      const part = each.thick * (leaf.count / each.count);
      link(links, columns[1] + BAR, inside, part, columns[2], leaf.top, leaf.thick, leaf.kind, `${leaf.name}: ${shown(leaf.count)}`);
      inside += part;
      node(bars, words, leaf, columns[2], all);
    }
  }
  return make("figure", { "aria-label": "Fates" }, picture, make("details", {}, make("summary", {}, "Numbers"),
    table("Fates", [
      { title: "fate", of: (row) => (row.fate === "all" ? "all" : make("a", { href: to(row), "aria-label": [row.fate, row.stage, row.reason].filter(Boolean).join(", ") }, row.fate)) },
      { title: "stage", of: (row) => row.stage || "–" },
      { title: "reason", of: (row) => row.reason.replaceAll("_", " ") || "–" },
      { title: "episodes", of: (row) => shown(row.trajectories), number: true },
      { title: "share", of: (row) => percent(row.share), number: true },
    ], rows, { hidden: true })));
}

function merged(parts, to) {
  const found = new Map();
  for (const row of parts) {
    const name = row.fate === "dropped" ? `dropped in ${row.stage}` : row.fate;
    const each = found.get(name) ?? { name, kind: row.fate === "open" ? "pending" : row.fate, count: 0, reasons: [] };
    each.count += row.trajectories;
    if (row.fate === "dropped") each.reasons.push({ name: row.reason.replaceAll("_", " "), kind: "dropped", count: row.trajectories, href: to(row) });
    else each.href = to(row);
    found.set(name, each);
  }
  return [...found.values()];
}

/** Give every node its top: in order, a reason next to where it comes from, and never closer than a line of text. */
function placeBeside(middle, leaves) {
  stack(middle);
  for (const each of middle) for (const leaf of each.reasons) leaf.least = each.top;
  stack(leaves);
}

/** One below the other: the line of all, then each node, its reasons below its own line. */
function placeInLines(middle) {
  let top = SLOT;
  for (const each of middle) {
    top = Math.max(stack([each], top), stack(each.reasons, top + SLOT));
  }
}

function stack(nodes, from = 0) {
  let top = from;
  for (const each of nodes) {
    each.top = Math.max(top, each.least ?? 0);
    top = each.top + Math.max(each.thick + 8, SLOT);
  }
  return top;
}

function link(group, x, y, thick, toX, toY, toThick, kind, title) {
  const bend = (x + toX) / 2;
  const path = draw("path", {
    d: `M${x},${y} C${bend},${y} ${bend},${toY} ${toX},${toY} L${toX},${toY + toThick} C${bend},${toY + toThick} ${bend},${y + thick} ${x},${y + thick} Z`,
    class: `link ${kind}`,
  });
  path.append(draw("title", {}, title));
  group.append(path);
}

function node(bars, words, each, x, all) {
  bars.append(draw("rect", { x, y: each.top, width: BAR, height: each.thick, rx: 2, class: `node ${each.kind}` }));
  const isFirst = each.kind === "all" && narrow.matches; // above its bar: next to it are the others
  const middle = each.top + Math.min(each.thick, each.reasons?.length && narrow.matches ? SLOT : Infinity) / 2; // its reasons are below
  const text = draw("text", { x: isFirst ? x : x + BAR + 8, y: (isFirst ? SLOT / 2 : Math.max(middle, 8)) + 4 });
  text.append(draw("tspan", { class: "what" }, each.name), draw("tspan", { class: "many", dx: 6 }, `${shown(each.count)} · ${percent(each.count / all)}`));
  words.append(each.href ? draw("a", { href: each.href }, text) : text);
}

function spoken(middle, all) {
  return `Of ${shown(all)} episodes: ${middle.map((each) => `${shown(each.count)} ${each.name}`).join(", ")}`;
}
