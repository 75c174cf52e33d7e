// Two answers side by side: by two versions, or two members of a group, with what differs marked.

import { ask } from "../ask.js";
import { words } from "../conversation.js";
import { card, facts, make, shown } from "../dom.js";
import { seen } from "../text.js";
import { link, searchFor } from "./links.js";

const LONGEST = 20_000;
// Characters of a text that are compared; a longer one is shown as it is.

/** The address of a pair. */
export const pairOf = (left, right) => searchFor({ left, right }, "pair");

/** LEFT and RIGHT, each a trajectory. */
export async function pair(run, asked) {
  const { left = "", right = "" } = Object.fromEntries(new URLSearchParams(asked));
  const sides = await Promise.all([left, right].map(async (id) => {
    const [[found], events] = await Promise.all([ask("trajectory", { run, trajectory: id }), ask("conversation", { trajectory: id })]);
    return { id, found, turns: events.filter((event) => event.kind === "TurnRecorded") };
  }));
  if (sides.some(({ found }) => !found)) return [make("h1", {}, "Not found"), make("p", { class: "empty" }, "One of the two trajectories is not in ClickHouse.")];
  const count = Math.max(...sides.map(({ turns }) => turns.length));
  return [
    make("h1", {}, "Two answers, side by side"),
    card("What they are", null, make("div", { class: "pair" }, sides.map(({ id, found, turns }) => facts([
      ["trajectory", link("trajectory", id)], ["sampled by", versions(turns)], ["reward", found.reward], ["its parts", shown(found.components)],
      ["advantage of each token", found.advantage], ["sampled tokens", found.sampled_tokens], ["group", found.group_id ? link("group", found.group_id) : null],
    ]))), { wide: true, name: "sides" }),
    ...Array.from({ length: count }, (_, at) => {
      const [one, other] = sides.map(({ turns }) => (turns[at] ? words(turns[at].completion) : null));
      return card(`Turn ${at + 1}`, one === other ? "The same." : "Struck through: only on the left. Underlined: only on the right.", make("div", { class: "pair" }, marked(one, other)), { wide: true, name: `turn ${at + 1}` });
    }),
  ];
}

const versions = (turns) => [...new Set(turns.map((turn) => (turn.policy_version === null ? turn.model : `version ${turn.policy_version}`)))].join(", ");

function marked(one, other) {
  const plain = (text) => make("div", { class: "said assistant" }, make("p", {}, text === null ? "(no such turn)" : text ? seen(text) : "(nothing)"));
  if (one === null || other === null || one.length > LONGEST || other.length > LONGEST) return [plain(one), plain(other)];
  const parts = Diff.diffWordsWithSpace(one, other);
  const side = (isRight) => make("div", { class: "said assistant" }, make("p", {}, parts.filter((part) => !(isRight ? part.removed : part.added)).map((part) =>
    (part.added ? make("ins", {}, seen(part.value)) : part.removed ? make("del", {}, seen(part.value)) : seen(part.value)))));
  return [side(false), side(true)];
}
