// A search, looked at one case after another: where in it one is, what is judged, and a key to the next.

import { ask } from "../ask.js";
import { card, make, many, shown } from "../dom.js";
import { keyed } from "../keys.js";
import { trajectory } from "./drill.js";
import { isJudged } from "./judging.js";
import { searchFor } from "./links.js";

const PAGE = 100;
let held = null, current = null, looks = 0;
// The search that is open: its rows stay as they were found, so that a verdict or a new episode moves nothing. And the case in it.

addEventListener("rollbus:judged", () => { if (current) document.querySelector("[data-card=queue] .queue")?.replaceWith(draw(...current)); });

/** The case at a place of a search; `at` counts from 0, and `case` is the trajectory that was there. */
export async function queue(run, asked) {
  const { at: place, case: id, ...search } = Object.fromEntries(new URLSearchParams(asked));
  let at = Math.max(0, Number(place ?? 0) || 0);
  const name = JSON.stringify([run, search]);
  if (held?.name !== name) held = { name, rows: [], all: 0, pages: new Map() };
  const list = held, look = ++looks; // another search may be opened before this one has answered
  await load(list, run, search, Math.floor(at / PAGE));
  if (id && list.rows[at]?.trajectory_id !== id) at = Math.max(at, list.rows.findIndex((row) => row?.trajectory_id === id));
  const row = list.rows[at];
  if (!row) return [make("h1", {}, "A search, case by case"), make("p", { class: "empty" }, list.all ? `There ${list.all === 1 ? "is" : "are"} ${many(list.all, "case")}. ` : "None matches. ", make("a", { href: searchFor(search) }, "Change the search"))];
  const line = [list, search, at, row];
  if (look === looks) current = line;
  return [card("Case by case", null, draw(...line), { wide: true, name: "queue" }), ...await trajectory(run, row.trajectory_id)];
}

async function load(list, run, search, number) {
  if (!list.pages.has(number)) {
    list.pages.set(number, ask("find_episodes", { run, ...search, limit: PAGE, skip: number * PAGE }));
    list.pages.get(number).catch(() => list.pages.delete(number)); // asked again next time
  }
  const rows = await list.pages.get(number);
  rows.forEach((row, offset) => { list.rows[number * PAGE + offset] = row; });
  list.all = Math.max(list.all, rows[0]?.matches ?? 0);
}

function draw(list, search, at, row) {
  const to = (other) => searchFor({ ...search, at: other || "", case: list.rows[other]?.trajectory_id }, "queue");
  const open = list.rows.findIndex((each, index) => index > at && each && !isJudged(each));
  const step = (key, title, other, isThere) => isThere ? make("a", { href: to(other), ...keyed(key) }, title, make("kbd", { "aria-hidden": "true" }, key.split(" ")[0])) : make("span", { class: "label" }, title);
  const judges = isJudged(row);
  return make("p", { class: "queue" },
    step("k ArrowLeft", "previous", at - 1, at > 0), make("strong", { role: "status" }, `${shown(at + 1)} of ${shown(list.all)}`), step("j ArrowRight", "next", at + 1, at + 1 < list.all),
    step("n", "next unjudged", open, open > 0), make("span", { class: judges ? "mark" : "label" }, judges ? `judged by ${judges}` : "not judged"), make("a", { href: searchFor(search) }, "the whole list"));
}
