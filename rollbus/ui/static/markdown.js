// Markdown → elements. The library only reads: every text is set as text, no link leads out, and no picture is loaded.

import { marked } from "./marked-18.2.1/marked.esm.js";
import { make } from "./dom.js";
import { seen } from "./text.js";

const INLINE = {
  text: (token) => (token.tokens ? inline(token.tokens) : seen(token.raw)),
  escape: (token) => seen(token.text),
  strong: (token) => make("strong", {}, inline(token.tokens)),
  em: (token) => make("em", {}, inline(token.tokens)),
  del: (token) => make("del", {}, inline(token.tokens)),
  codespan: (token) => make("code", {}, seen(token.text)),
  br: () => "\n",
  link: (token) => [inline(token.tokens), token.text === token.href ? null : make("span", { class: "label" }, seen(` (${token.href})`))],
  image: (token) => seen(`[picture: ${token.text || "without a name"}, ${token.href}]`),
};
const BLOCKS = {
  space: () => null,
  hr: () => make("hr"),
  paragraph: (token) => make("p", {}, inline(token.tokens)),
  text: (token) => make("p", {}, INLINE.text(token)),
  heading: (token) => make("p", { class: "heading" }, inline(token.tokens)),
  code: (token) => make("pre", { tabindex: 0 }, make("code", {}, seen(token.text))),
  blockquote: (token) => make("blockquote", {}, blocks(token.tokens)),
  list: (token) => make(token.ordered ? "ol" : "ul", { start: token.ordered && token.start !== 1 ? token.start : null }, token.items.map((item) => make("li", {}, blocks(item.tokens)))),
  table: (token) => make("table", {}, make("thead", {}, make("tr", {}, token.header.map((cell) => make("th", { scope: "col" }, inline(cell.tokens))))),
    make("tbody", {}, token.rows.map((row) => make("tr", {}, row.map((cell) => make("td", {}, inline(cell.tokens))))))),
};
const PLAIN = new Set(["paragraph", "text", "space", "br", "escape"]);

const blocks = (tokens) => tokens.map((token) => BLOCKS[token.type](token)).flat();
const inline = (tokens) => tokens.map((token) => INLINE[token.type](token)).flat(Infinity);

/** An element for a text with Markdown in it; null for one without, and for one that holds HTML or is too deep, which is read as it is. */
export function formatted(text) {
  try { return made(text); } catch (error) {
    if (error instanceof RangeError) return null; // quotes within quotes, by the thousand: no call can be inside so many
    throw error;
  }
}

function made(text) {
  const tokens = marked.lexer(text);
  let isPlain = true, isKnown = true;
  marked.walkTokens(tokens, (token) => {
    isPlain &&= PLAIN.has(token.type) || (token.type === "link" && token.text === token.href);
    isKnown &&= token.type === "list_item" || Object.hasOwn(BLOCKS, token.type) || Object.hasOwn(INLINE, token.type);
  });
  return isPlain || !isKnown ? null : make("div", { class: "markdown" }, blocks(tokens));
}
