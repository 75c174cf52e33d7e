// What becomes of the episodes of a run, stage by stage, and when the next step comes: as `rollbus status` shows it.

import { card, draw, make, percent, shown, table } from "./dom.js";

/** The funnel as a card, which is nothing for a run that is not in the settings. */
export function funnelOf(funnel) {
  if (!funnel) return [];
  const began = funnel.stages[0]?.episodes ?? 0;
  const verdict = make("p", { class: funnel.blocked_at ? "error" : "forecast", role: "status" }, funnel.verdict);
  if (!began) return [card("From episode to step", null, verdict, { wide: true, name: "funnel" })];
  return [card("From episode to step", "The episodes that began within a day: what each stage keeps, what is lost there, and what to do.",
    make("div", {}, verdict, stages(funnel.stages, began), remarks(funnel)), { wide: true, name: "funnel" })];
}

const stages = (all, began) => table("Stages", [
  { title: "stage", of: (stage) => stage.name },
  { title: "", of: (stage) => bar(stage.episodes / began) },
  { title: "episodes", of: (stage) => shown(stage.episodes), number: true },
  { title: "share", of: (stage) => percent(stage.episodes / began), number: true },
  { title: "on the way", of: (stage) => (stage.waiting ? shown(stage.waiting) : ""), number: true },
  { title: "lost", of: (stage) => (stage.lost.length ? shown(sum(stage.lost)) : ""), number: true },
  { title: "why, and what to do", of: (stage) => make("ul", { class: "losses" }, stage.lost.map((loss) => make("li", {}, `${shown(loss.episodes)} ${loss.what} → ${loss.remedy}`))) },
], all, { hidden: true, key: (stage) => stage.name });

const sum = (lost) => lost.reduce((total, loss) => total + loss.episodes, 0);

function bar(share) {
  const picture = draw("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", class: "share", "aria-hidden": "true" });
  picture.append(draw("rect", { x: 0, y: 0, width: 100, height: 10, class: "ground" }), draw("rect", { x: 0, y: 0, width: 100 * share, height: 10, class: "part" }));
  return picture;
}

/** What else a person should know, a sentence each. */
function remarks({ unassembled, notices, next_turns }) {
  const sentences = [...(unassembled ? [unassembled.sentence] : []), ...(next_turns ? [next_turns] : []), ...notices.map((notice) => `${notice.what} → ${notice.remedy}`)];
  return sentences.length ? make("ul", { class: "notices", "aria-label": "Notices" }, sentences.map((sentence) => make("li", {}, sentence))) : null;
}
