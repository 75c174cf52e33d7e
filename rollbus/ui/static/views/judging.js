// What a judge says of a case, one key each: good, bad, a score, a comment, into a data set. And who has judged already.

import { ask, send } from "../ask.js";
import { card, make, shown } from "../dom.js";
import { doing } from "../doing.js";
import { keyed } from "../keys.js";
import { logIn, mayAct, who } from "../session.js";
import { searchFor } from "./links.js";

const SCORES = [0, 0.25, 0.5, 0.75, 1];
const given = new Map();
// What was said in this page, by episode, judge and name, null if it was taken back: it is in the log, and ClickHouse may not have it yet.
const remembered = (name, otherwise) => localStorage.getItem(`rollbus-${name}`) ?? otherwise;

/** Who has judged a row of a search, in words; an empty text for nobody. */
export const isJudged = (row) => [...new Set([...row.judges, ...[...given.get(row.episode_id) ?? []].flatMap(([judge, values]) => ([...values.values()].some((value) => value !== null) ? [judge] : []))])].join(", ");

/** The card of a trajectory, whose rewards may still be on their way; without a session, the way to one. */
export async function judging(run, found, rewards) {
  if (who() === null) {
    return card("Judge", "A verdict is a reward like any other, with its author. Log in to give one.",
      make("p", {}, make("button", { type: "button", class: "more", onclick: logIn, ...keyed("l") }, "log in")), { wide: true, name: "judging" });
  }
  const [sets, reports, excluding] = await Promise.all([mayAct() ? ask("data_sets", { trajectory: found.trajectory_id }) : [], rewards, doing(run, ["exclude"], { episode: found.episode_id })]);
  const field = (name, title, more = {}) => make("label", { "data-key": name }, title, make("input", { name, autocomplete: "off", ...more }));
  const say = (key, title, value) => make("button", { type: "button", class: "say", "data-key": title, onclick: (event) => judge(event.currentTarget, found, value), ...keyed(key) }, title, make("kbd", { "aria-hidden": "true" }, key.split(" ")[0]));
  return card("Judge", `As ${who()}. A second verdict replaces your first; another judge's stays. “?” lists the keys.`, make("div", { class: "own" },
    make("div", { class: "verdicts", role: "group", "aria-label": "Verdict" }, say("u", "good", 1), say("d", "bad", 0), ...SCORES.map((value, at) => say(String(at + 1), String(value), value)), say("x", "take back", null)),
    make("form", { class: "search", "data-key": "words", "aria-label": "What goes with a verdict", onsubmit: (event) => { event.preventDefault(); comment(event.currentTarget, found, reports); } },
      field("comment", "comment: Enter adds it to your verdict", { ...keyed("c") }), field("name", "name of the reward", { value: remembered("reward", "reward"), required: true, maxlength: 100 }),
      make("button", { type: "submit" }, "Add the comment")),
    !mayAct() ? null : make("form", { class: "search", "data-key": "data-sets", "aria-label": "Put into this data set", onsubmit: (event) => { event.preventDefault(); intoSet(event.currentTarget, found); } },
      field("data_set", "data set", { required: true, list: "data-sets", value: remembered("set", "") }), make("datalist", { id: "data-sets" }, sets.map((row) => make("option", { value: row.data_set }))),
      make("button", { type: "submit", ...keyed("i") }, "Put into this data set ", make("kbd", { "aria-hidden": "true" }, "i"))),
    memberOf(found, sets.filter((row) => row.has_it)),
    excluding,
    make("p", { class: "answer label", role: "status", "data-key": "answer" })), { wide: true, name: "judging" });
}

const memberOf = (found, sets) => sets.length ? make("p", { "data-key": "member of" }, "It is in ", ...sets.flatMap((row, at) => [at ? ", " : "", make("a", { href: searchFor({ data_set: row.data_set }) }, `${row.data_set} (${shown(row.members)})`), " ",
  make("button", { type: "button", class: "more", "data-key": `out of ${row.data_set}`, "aria-label": `take out of ${row.data_set}`, onclick: (event) => act(event.currentTarget, () => member(found, row.data_set, false), `It is out of ${row.data_set}.`) }, "take out")])) : null;

const member = (found, name, isMember) => send("data-sets", { data_set: name, trajectory_id: found.trajectory_id, episode_id: found.episode_id, is_member: isMember });

function intoSet(form, found) {
  const name = form.elements.data_set.value.trim();
  localStorage.setItem("rollbus-set", name);
  return act(form, () => member(found, name, true), `It is in the log: into ${name}.`);
}

function judge(button, found, value) {
  const { elements } = button.closest(".own").querySelector("form");
  const name = elements.name.value.trim() || "reward", words = elements.comment.value.trim();
  localStorage.setItem("rollbus-reward", name);
  return act(button, async () => {
    await send("verdicts", { episode_id: found.episode_id, value, name, ...(words ? { comment: words } : {}) });
    keep(found.episode_id, who(), name, value);
    elements.comment.value = "";
  }, value === null ? "It is in the log: taken back." : `It is in the log: ${name} ${shown(value)}, by ${who()}.`);
}

function keep(episode, judge, name, value) {
  if (!given.has(episode)) given.set(episode, new Map());
  const values = given.get(episode).get(judge) ?? new Map();
  given.get(episode).set(judge, values.set(name, value));
}

/** Say this judge's verdict under the name again, with its words. */
function comment(form, found, rewards) {
  const name = form.elements.name.value.trim() || "reward";
  const isMine = (row) => row.name === name && (row.principal || row.source) === who() && row.in_force && !row.turn_event_id;
  const said = given.get(found.episode_id)?.get(who())?.get(name);
  const mine = said === undefined ? rewards.findLast(isMine)?.value ?? null : said;
  if (mine !== null) return judge(form, found, mine);
  return act(form, () => { throw new Error("A comment goes with a verdict: choose one, and both are written."); }, "");
}

async function act(element, write, done) {
  const answer = element.closest(".own").querySelector(".answer");
  answer.isUnfolded = true;
  answer.className = "answer label";
  answer.textContent = "writing …";
  try {
    await write();
    answer.className = "answer done";
    answer.textContent = done;
    dispatchEvent(new Event("rollbus:judged"));
  } catch (error) {
    answer.className = "answer error";
    answer.textContent = error.message;
  }
}
