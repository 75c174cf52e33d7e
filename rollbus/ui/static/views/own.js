// What the owner does with a trajectory: feedback, and into or out of a data set. The token stays in this page's memory.

import { ask, send } from "../ask.js";
import { card, make, shown } from "../dom.js";
import { searchFor } from "./find.js";

let token = "";
// Never stored: a reload forgets it.

/** The card of a trajectory. */
export async function owned(found) {
  const sets = await ask("data_sets", { trajectory: found.trajectory_id });
  const mine = sets.filter((row) => row.has_it);
  return card("Yours to say", "Both go into the log, and show here once the sink has written them. They take the stack's token, which “rollbus up” has made.", make("div", { class: "own" },
    make("div", { class: "search" }, make("label", { "data-key": "token" }, "the owner's token", make("input", { name: "token", type: "password", autocomplete: "off", oninput: (event) => { token = event.currentTarget.value.trim(); } }))),
    form("feedback", "Give feedback", [
      input("value", "reward", { inputmode: "decimal", required: true, pattern: "-?[0-9.]+" }), input("name", "name", { value: "reward", required: true }), input("comment", "comment"),
    ], ({ value, name, comment }) => send("feedback", { episode_id: found.episode_id, value: Number(value), name, ...(comment ? { comment } : {}) }, token)),
    form("data-sets", "Put into this data set", [input("data_set", "data set", { required: true, list: "data-sets" }), make("datalist", { id: "data-sets" }, sets.map((row) => make("option", { value: row.data_set })))],
      ({ data_set: name }) => member(found, name, true)),
    mine.length ? make("p", { "data-key": "member of" }, "It is in ", ...mine.flatMap((row, at) => [at ? ", " : "", make("a", { href: searchFor({ data_set: row.data_set }) }, `${row.data_set} (${shown(row.members)})`), " ",
      make("button", { type: "button", class: "more", "data-key": `out of ${row.data_set}`, "aria-label": `take it out of ${row.data_set}`, onclick: (event) => act(event.currentTarget.closest(".own"), () => member(found, row.data_set, false)) }, "take out")])) : null,
    make("p", { class: "answer label", role: "status", "data-key": "answer" })), { wide: true, name: "own" });
}

const member = (found, name, isMember) => send("data-sets", { data_set: name, trajectory_id: found.trajectory_id, episode_id: found.episode_id, is_member: isMember }, token);

const input = (name, title, more = {}) => make("label", { "data-key": name }, title, make("input", { name, autocomplete: "off", ...more }));

function form(name, title, fields, write) {
  return make("form", { class: "search", "data-key": name, "aria-label": title, onsubmit: (event) => {
    event.preventDefault();
    const values = Object.fromEntries([...new FormData(event.currentTarget)].map(([each, value]) => [each, value.trim()]));
    act(event.currentTarget.closest(".own"), () => write(values));
  } }, fields, make("button", { type: "submit" }, title));
}

async function act(place, write) {
  const answer = place.querySelector(".answer");
  answer.isUnfolded = true;
  answer.className = "answer label";
  answer.textContent = "writing …";
  try {
    await write();
    answer.className = "answer done";
    answer.textContent = "It is in the log.";
  } catch (error) {
    answer.className = "answer error";
    answer.textContent = error.message;
  }
}
