// A search, looked at one case after another: where in it one is, what is judged, and a key to the next.

import { ask } from "../ask.js";
import { card, make, many, shown } from "../dom.js";
import { keyed } from "../keys.js";
import { trajectory } from "./drill.js";
import { isJudged } from "./judging.js";
import { searchFor } from "./links.js";

const PAGE = 100;
let held = null, current = null;
// The search that is open: its rows stay as they were found, so that a verdict or a new episode moves nothing. And the case in it.

addEventListener("rollbus:judged", () => { if (current) document.querySelector("[data-card=queue] .queue")?.replaceWith(draw(...current)); });

/** The case at a place of a search; `at` counts from 0, and `case` is the trajectory that was there. */
export async function queue(run, asked) {
  const { at: place, case: id, ...search } = Object.fromEntries(new URLSearchParams(asked));
  let at = Math.max(0, Number(place ?? 0) || 0);
  const name = JSON.stringify([run, search]);
  if (held?.name !== name) held = { name, rows: [], all: 0, pages: new Map() };
  await load(run, search, Math.floor(at / PAGE));
  if (id && held.rows[at]?.trajectory_id !== id) at = Math.max(at, held.rows.findIndex((row) => row?.trajectory_id === id));
  const row = held.rows[at];
  if (!row) return [make("h1", {}, "A search, case by case"), make("p", { class: "empty" }, held.all ? `There ${held.all === 1 ? "is" : "are"} ${many(held.all, "case")}. ` : "None matches. ", make("a", { href: searchFor(search) }, "Change the search"))];
  current = [search, at, row];
  return [card("Case by case", null, draw(...current), { wide: true, name: "queue" }), ...await trajectory(run, row.trajectory_id)];
}

async function load(run, search, number) {
  if (!held.pages.has(number)) held.pages.set(number, ask("find_episodes", { run, ...search, limit: PAGE, skip: number * PAGE }));
  const rows = await held.pages.get(number);
  rows.forEach((row, offset) => { held.rows[number * PAGE + offset] = row; });
  held.all = Math.max(held.all, rows[0]?.matches ?? 0);
}

function draw(search, at, row) {
  const to = (other) => searchFor({ ...search, at: other || "", case: held.rows[other]?.trajectory_id }, "queue");
  const open = held.rows.findIndex((each, index) => index > at && each && !isJudged(each));
  const step = (key, title, other, isThere) => isThere ? make("a", { href: to(other), ...keyed(key) }, title, make("kbd", { "aria-hidden": "true" }, key.split(" ")[0])) : make("span", { class: "label" }, title);
  const judges = isJudged(row);
  return make("p", { class: "queue" },
    step("k ArrowLeft", "previous", at - 1, at > 0), make("strong", { role: "status" }, `${shown(at + 1)} of ${shown(held.all)}`), step("j ArrowRight", "next", at + 1, at + 1 < held.all),
    step("n", "next unjudged", open, open > 0), make("span", { class: judges ? "mark" : "label" }, judges ? `judged by ${judges}` : "not judged"), make("a", { href: searchFor(search) }, "the whole list"));
}
