// A value of JSON → a tree that can be folded: objects and lists open level by level, texts as they are.

import { make } from "./dom.js";
import { isPlain } from "./exact.js";
import { seen, told } from "./text.js";

const OPEN_DEPTH = 2, BRIEF = 80, MOST = 200;
// Levels that stand open at first; characters of a folded value that are shown; entries of one level.

/** The tree of a value; a plain one is its text. */
export function tree(value, depth = 0) {
  if (isPlain(value)) return told("span", { class: `value ${value === null ? "null" : typeof value === "object" ? "number" : typeof value}` }, typeof value === "string" ? value : JSON.stringify(value));
  const entries = Object.entries(value);
  if (!entries.length) return make("span", { class: "value" }, Array.isArray(value) ? "[]" : "{}");
  return make("ul", { class: "tree" }, entries.slice(0, MOST).map(([name, each]) => {
    const isDeep = !isPlain(each) && Object.keys(each).length > 0;
    if (!isDeep) return make("li", {}, make("span", { class: "name" }, told("span", {}, name)), " ", tree(each, depth + 1));
    return make("li", {}, make("details", { open: depth < OPEN_DEPTH }, make("summary", {}, make("span", { class: "name" }, told("span", {}, name)), " ", make("span", { class: "label brief" }, brief(each))), tree(each, depth + 1)));
  }), entries.length > MOST ? make("li", { class: "label" }, `… and ${entries.length - MOST} more`) : null);
}

function brief(value) {
  const text = JSON.stringify(value);
  return seen(text.length > BRIEF ? `${text.slice(0, BRIEF)}…` : text);
}
