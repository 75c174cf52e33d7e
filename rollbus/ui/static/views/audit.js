// What people did, and what the owner can do to the run that is looked at.

import { ask } from "../ask.js";
import { card, make, table, time } from "../dom.js";
import { doing } from "../doing.js";
import { keyed } from "../keys.js";
import { seen } from "../text.js";
import { logIn } from "../session.js";

const ON_RUN = ["pause", "resume", "stop", "promote", "rollback", "reject", "forget"];

export async function audit(run) {
  const [rows, judges, buttons] = await Promise.all([ask("audit"), ask("agreement_of_judges"), doing(run, ON_RUN)]);
  return [
    make("h1", {}, "Act, and who did what"),
    card("Act", `On run ${run}. Each shows what it will do, asks for a reason, and writes a record.`, buttons ?? make("p", {}, make("button", { type: "button", class: "more", onclick: logIn, ...keyed("l") }, "log in"), " with the owner's token first."), { wide: true, name: "act" }),
    card("Who did what", "The newest first; verdicts are together by judge and hour.", rows.length ? table("Who did what", [
      { title: "when", of: (row) => time(row.at), moment: true },
      { title: "what", of: (row) => row.what },
      { title: "on", of: (row) => make("span", {}, seen(row.subject)) },
      { title: "who and why", of: (row) => make("span", {}, row.reason ? seen(row.reason) : "–") },
      { title: "in the log", of: (row) => `${row.kafka_topic} ${row.kafka_partition}:${row.kafka_offset}`, id: true },
    ], rows, { hidden: true }) : make("p", { class: "empty" }, "Nobody has done anything yet."), { wide: true, name: "audit" }),
    judges.length ? card("Agreement of judges", "Of the cases that two have judged under one name. Kappa is 1 for full agreement, 0 for what chance gives.", table("Agreement of judges", [
      { title: "reward", of: (row) => row.reward }, { title: "judge", of: (row) => row.judge }, { title: "and", of: (row) => row.other_judge },
      { title: "cases", of: (row) => String(row.cases), number: true }, { title: "the same", of: (row) => `${Math.round(100 * row.same_share)} %`, number: true },
      { title: "kappa", of: (row) => row.kappa.toFixed(2), number: true },
    ], judges, { hidden: true }), { wide: true, name: "judges" }) : null,
  ];
}
