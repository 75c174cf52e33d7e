// Events of an episode → what was said, with each sampled token coloured by its log-prob.

import { make, shown, time } from "./dom.js";

const DEEPEST = -5;
// Nats at which a token has the deepest colour: a chance of 0.7 %.

/** The conversation as a list. */
export function conversation(events) {
  if (!events.length) return make("p", { class: "empty" }, "The events are not in ClickHouse; their time there may be over.");
  return make("ol", { class: "talk" }, events.map((event) => make("li", { "data-kind": event.kind }, head(event), ...said(event))));
}

function head(event) {
  return make("div", { class: "head" },
    make("a", { href: `#/event/${encodeURIComponent(event.event_id)}`, title: event.event_id }, event.kind),
    make("span", { class: "label" }, `${time(event.occurred_at)} · ${event.kafka_topic} ${event.kafka_partition}:${event.kafka_offset}`),
    event.model ? make("span", { class: "label" }, `${event.model}${event.policy_version === null ? "" : `, version ${event.policy_version}`}`) : null);
}

function said(event) {
  if (event.kind === "TurnRecorded") {
    return [...parsed(event.added_messages, []).map(message), message(parsed(event.completion, {})), tokens(event)];
  }
  if (event.kind === "ToolCalled") return [bubble("tool", `${event.tool}(${event.arguments})\n→ ${event.result ?? ""}`)];
  if (event.kind === "RewardReported") return [bubble("reward", `${event.reward} = ${shown(event.value)}${event.comment ? `: ${event.comment}` : ""}`)];
  return [];
}

function message(each) {
  const calls = (each.tool_calls ?? []).map((call) => `→ ${call.function?.name ?? call.name}(${call.function?.arguments ?? call.arguments ?? ""})`);
  const content = typeof each.content === "string" ? each.content : each.content ? JSON.stringify(each.content) : "";
  return bubble(each.role ?? "assistant", [content, ...calls].filter(Boolean).join("\n"));
}

const bubble = (role, text) => make("div", { class: `said ${role}` }, make("span", { class: "role" }, role), make("p", {}, text || "(nothing)"));

function tokens(event) {
  const ids = event.token_ids ?? [], logprobs = event.logprobs ?? [], texts = event.token_texts;
  if (!ids.length) return make("p", { class: "empty" }, `No tokens were recorded${event.untrainable_reason ? `: ${event.untrainable_reason.replaceAll("_", " ")}` : ""}.`);
  const mean = logprobs.reduce((sum, each) => sum + each, 0) / Math.max(1, logprobs.length);
  const list = make("div", { class: texts ? "tokens text" : "tokens", role: "list", "aria-label": `${ids.length} sampled tokens` }, ids.map((id, at) => token(id, logprobs[at], texts?.[at])));
  return make("div", { class: "sampled" }, list,
    make("p", { class: "label legend" }, `${ids.length} tokens, mean log-prob ${shown(mean)}, in all ${shown(mean * logprobs.length)} `,
      make("span", { class: "scale", "aria-hidden": "true" }), ` 0 … ${DEEPEST} nats`));
}

function token(id, logprob, text) {
  const depth = logprob === undefined ? 0 : Math.min(1, logprob / DEEPEST);
  const label = `${text === undefined ? "" : `${JSON.stringify(text)}, `}token ${id}, log-prob ${logprob === undefined ? "not recorded" : logprob.toFixed(3)}${logprob === undefined ? "" : `, chance ${(100 * Math.exp(logprob)).toFixed(1)} %`}`;
  const element = make("span", { class: "token", role: "listitem", title: label, "aria-label": label }, text === undefined ? String(id) : text || "·");
  element.style.setProperty("--depth", `${Math.round(depth * 100)}%`);
  return element;
}

function parsed(text, otherwise) {
  try { return JSON.parse(text) ?? otherwise; } catch { return otherwise; }
}
