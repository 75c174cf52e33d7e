// Text of strangers → what can be looked at: what turns a line round or cannot be seen is named, what is long is folded.

import { make } from "./dom.js";

const UNSEEN = /(?![\t\n\r\u200c\u200d])[\p{Cc}\p{Cf}\p{Co}\p{Cs}]/gu;
// Controls, formats, private and halves of pairs; not the joiners, without which emoji and Persian fall apart.
export const LONGEST = 10_000;
// Characters that a person may read in one place; a record holds ninety times as many.

/** A text as strings and elements, each unseen character as its name. */
export function seen(text) {
  const parts = [];
  let from = 0;
  for (const { 0: found, index } of text.matchAll(UNSEEN)) {
    const name = `U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    parts.push(text.slice(from, index), make("span", { class: "unseen-sign", title: `the character ${name}, which cannot be seen` }, name));
    from = index + found.length;
  }
  return [...parts, text.slice(from)].filter((part) => part !== "");
}

/** An element with a text in it, and a button for the rest of a long one. */
export function told(tag, properties, text) {
  const start = text.length > LONGEST ? text.slice(0, LONGEST).replace(/[\ud800-\udbff]$/, "") + "…" : text;
  const place = make(tag, properties, seen(start));
  return [place, start === text ? null : more(`show all ${text.length.toLocaleString("en")} characters`, () => { place.isUnfolded = true; place.replaceChildren(...seen(text)); })];
}

/** A button that goes once it was pressed. */
export function more(label, act) {
  const button = make("button", { type: "button", class: "more", onclick: () => { act(); button.hidden = true; } }, label);
  return button;
}
