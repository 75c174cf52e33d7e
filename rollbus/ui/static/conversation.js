// Events of an episode → what was said, with each sampled token coloured by its log-prob.

import { make, many, percent, shown, table, time } from "./dom.js";
import { isPlain, parse } from "./exact.js";
import { formatted } from "./markdown.js";
import { LONGEST, more, seen, told } from "./text.js";
import { tree } from "./tree.js";

const DEEPEST = -5;
// Nats at which a token has the deepest colour: a chance of 0.7 %.
const MOST_TOKENS = 2_000;
// Shown at once, of a turn; a browser is slow with more.
const ROLES = new Set(["assistant", "developer", "end", "error", "reward", "system", "tool", "user"]);
const BRIEF = 200;
// Characters of a string inside JSON: a picture is a part of a message, too.

/** The conversation as a list; with the advantage of its trajectory, each sampled token says where it was pushed. */
export function conversation(events, advantage = null) {
  if (!events.length) return make("p", { class: "empty" }, "The events are not in ClickHouse; their time there may be over.");
  return make("ol", { class: "talk" }, events.map((event) => make("li", { "data-kind": event.kind }, head(event), ...said(event, advantage))));
}

function head(event) {
  return make("div", { class: "head" },
    make("a", { href: `#/event/${encodeURIComponent(event.event_id)}`, title: event.event_id }, event.kind),
    make("span", { class: "label" }, `${time(event.occurred_at)} · ${event.kafka_topic} ${event.kafka_partition}:${event.kafka_offset}`),
    event.model ? make("span", { class: "label" }, `${event.model}${event.policy_version === null ? "" : `, version ${event.policy_version}`}`) : null);
}

function said(event, advantage) {
  if (event.kind === "TurnRecorded") {
    return [...list(event.added_messages).map(message), message(parsed(event.completion)), ...tokens(event, advantage)];
  }
  if (event.kind === "ToolCalled") return [bubble(event.tool_error === null ? "tool" : "error", [callOf(event.tool, event.arguments), ...(event.tool_error === null ? resultOf(event.result) : text(`It failed: ${event.tool_error}`))])];
  if (event.kind === "RewardReported") return [bubble("reward", text(`${event.reward} = ${shown(event.value)}${event.comment ? `: ${event.comment}` : ""}`))];
  if (event.kind === "EpisodeEnded") return [bubble(event.error ? "error" : "end", text(event.error ? `It ended with an error: ${event.error}` : `It ended: ${(event.stop_reason || "completed").replaceAll("_", " ")}`))];
  return [];
}

/** A message as it was recorded: its fields are text, of which tool calls and parts are JSON lists, if all is well. */
function message(recorded) {
  const each = isPlain(recorded) ? { content: recorded } : recorded;
  const lines = [each.content ? written(each.content) : "", ...list(each.parts).map(part)].filter(Boolean);
  return bubble(each.role ?? "assistant", [...(lines.length ? prose(lines.join("\n")) : []), ...list(each.tool_calls).flatMap(call)], { name: each.name, reasoning: each.reasoning });
}

/** The text that a message says, without its tool calls; for the head of a case. */
export function words(recorded) {
  const each = parsed(recorded);
  return !isPlain(each) ? [each.content ? written(each.content) : "", ...list(each.parts).map(part)].filter(Boolean).join("\n") : written(each ?? "");
}

/** The messages that an event has added. */
export const added = (event) => list(event.added_messages);

const part = (each) => (typeof each?.text === "string" ? each.text : written(each));

/** A call: its name, and its arguments as a tree if they are an object. */
function callOf(name, given) {
  const value = parsed(given);
  const isTree = !isPlain(value) && Object.keys(value).length > 0;
  return isTree ? make("div", { class: "call" }, told("p", {}, `→ ${name}`), tree(value)) : told("p", {}, `→ ${name}(${written(given ?? "")})`);
}

function call(each) {
  const { name, arguments: given, input } = each?.function ?? each?.custom ?? each ?? {};
  return typeof name === "string" ? callOf(name, given ?? input) : told("p", {}, `→ ${written(each)}`);
}

function resultOf(result) {
  const value = parsed(result);
  return isPlain(value) ? prose(String(result ?? "")) : [make("div", { class: "result" }, tree(value))];
}

const text = (plain) => told("p", {}, plain || "(nothing)");

/** A text of a person or a model, as Markdown where it is some, with a way to see it as it is. */
export function prose(plain) {
  const made = plain.length <= LONGEST ? formatted(plain) : null;
  if (made === null) return text(plain);
  const raw = make("div", { hidden: true }, text(plain));
  const button = make("button", { type: "button", class: "more raw", "aria-pressed": "false", onclick: () => {
    raw.hidden = !raw.hidden;
    made.hidden = !raw.hidden;
    button.setAttribute("aria-pressed", String(!raw.hidden));
  } }, "as written");
  return [made, raw, button];
}

const written = (value) => (typeof value === "string" ? value : JSON.stringify(value, (_, each) =>
  (typeof each === "string" && each.length > BRIEF ? `${each.slice(0, BRIEF)}… (${each.length.toLocaleString("en")} characters)` : each)));

function bubble(role, content, { name, reasoning } = {}) {
  return make("div", { class: ROLES.has(role) ? `said ${role}` : "said" },
    make("span", { class: "role" }, seen(name ? `${written(role)} · ${written(name)}` : written(role))),
    reasoning ? [make("span", { class: "role" }, " reasoning"), told("p", { class: "reasoning" }, written(reasoning))].flat() : null,
    content.flat().length ? content.flat() : text(""));
}

function tokens(event, advantage) {
  const ids = event.token_ids ?? [], logprobs = event.logprobs ?? [], texts = event.token_texts;
  if (!ids.length) return [make("p", { class: "empty" }, `No tokens were recorded${event.untrainable_reason ? `: ${event.untrainable_reason.replaceAll("_", " ")}` : ""}.`)];
  const known = logprobs.filter((each) => typeof each === "number"); // what was not finite comes as null
  const sum = known.length ? known.reduce((all, each) => all + each, 0) : null;
  const from = (start, end) => ids.slice(start, end).map((id, at) => token(id, logprobs[start + at], texts?.[start + at], advantage));
  const sampled = make("div", { class: texts ? "tokens text" : "tokens", role: "list", "aria-label": many(ids.length, "sampled token") }, from(0, MOST_TOKENS));
  return [make("div", { class: "sampled" }, sampled,
    ids.length > MOST_TOKENS ? more(`show all ${shown(ids.length)} tokens`, () => { sampled.isUnfolded = true; sampled.append(...from(MOST_TOKENS)); }) : null,
    make("p", { class: "label legend" }, advantage === null ? null : make("span", { class: `push ${pushed(advantage)}` }, `advantage ${advantage > 0 ? "+" : ""}${shown(advantage)}`),
      advantage === null ? null : ` for each token, ${PUSHES[pushed(advantage)]}; `, `${many(ids.length, "token")}, mean log-prob ${shown(sum === null ? null : sum / known.length)}, in all ${shown(sum)}${known.length < ids.length ? ` of the ${shown(known.length)} that have one` : ""} `,
      make("span", { class: "scale", "aria-hidden": "true" }), ` 0 … ${DEEPEST} nats`),
    asTable(ids, logprobs, texts, advantage))];
}

const PUSHES = { up: "which makes it likelier", down: "which makes it less likely", none: "which changes nothing" };
const pushed = (advantage) => (advantage > 0 ? "up" : advantage < 0 ? "down" : "none");

/** The tokens one below the other, with the numbers next to each; made when it is opened. */
function asTable(ids, logprobs, texts, advantage) {
  const place = make("details", { ontoggle: () => {
    if (!place.open || place.querySelector("table")) return;
    place.append(table("Sampled tokens", [
      ...(texts ? [{ title: "text", of: (at) => make("code", {}, seen(JSON.stringify(texts[at]))) }] : []),
      { title: "token", of: (at) => String(ids[at]), number: true },
      { title: "log-prob", of: (at) => (typeof logprobs[at] === "number" ? logprobs[at].toFixed(3) : "–"), number: true },
      { title: "chance", of: (at) => (typeof logprobs[at] === "number" ? percent(Math.exp(logprobs[at])) : "–"), number: true },
      { title: "advantage", of: () => (advantage === null ? "–" : shown(advantage)), number: true },
    ], ids.slice(0, MOST_TOKENS).map((_, at) => at), { hidden: true }));
    place.isUnfolded = true;
  } }, make("summary", {}, "As a table"));
  return place;
}

function token(id, logprob, text, advantage) {
  const isKnown = typeof logprob === "number";
  const depth = isKnown ? Math.min(1, logprob / DEEPEST) : 0;
  const chance = isKnown ? `${logprob.toFixed(3)}, chance ${(100 * Math.exp(logprob)).toFixed(1)} %` : "not recorded";
  const label = `${text === undefined ? "" : `${JSON.stringify(text)}, `}token ${id}, log-prob ${chance}${advantage === null ? "" : `, advantage ${shown(advantage)}`}`;
  const element = make("span", { class: advantage === null ? "token" : `token push ${pushed(advantage)}`, role: "listitem", title: label, "aria-label": label }, text === undefined ? String(id) : text ? seen(text) : "·");
  element.style.setProperty("--depth", `${Math.round(depth * 100)}%`);
  return element;
}

/** JSON text → its list; what is none is a list of itself, and nothing is an empty one. */
function list(text) {
  const value = parsed(text);
  return Array.isArray(value) ? value : value === null || value === undefined || value === "" ? [] : [value];
}

function parsed(text) {
  if (typeof text !== "string") return text;
  try { return parse(text); } catch { return text; }
}
