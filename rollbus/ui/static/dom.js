// Elements from plain values. Text is always set as text, never as HTML: conversations come from strangers.

/** make("td", {class: "number"}, 3) → an element. Properties that start with "on" are listeners. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== undefined && child !== null));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** The same for a drawing. */
export function draw(tag, properties = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A number as a person reads it. */
export function shown(value) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "number") {
    if (Number.isInteger(value)) return value.toLocaleString("en");
    return Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : Math.abs(value) >= 0.01 ? value.toFixed(3) : value.toPrecision(2);
  }
  if (typeof value === "object") {
    return Object.entries(value).map(([name, each]) => `${name} ${shown(each)}`).join(", ") || "–";
  }
  return String(value);
}

/** A count with its noun. */
export const many = (count, noun) => `${shown(count)} ${noun}${count === 1 ? "" : "s"}`;
export const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
export const short = (id) => (id.length > 14 ? `${id.slice(0, 12)}…` : id);
/** Milliseconds since 1970 as a moment in UTC. */
export const clock = (at) => (at === null || at === undefined ? "–" : `${new Date(at).toISOString().slice(0, 19).replace("T", " ")}Z`);
export const time = (text) => (text ? text.replace("T", " ").replace(/(\.\d{3})\d*/, "$1").replace(/\+00:00$/, "Z") : "–");

/** Columns: [{title, of: row => text or element, number?: true, id?: true, moment?: true}]; `key` names a row, which keeps its element. */
export function table(caption, columns, rows, { hidden = false, key = null } = {}) {
  const cell = (tag, column, content) => make(tag, { class: column.number ? "number" : column.id ? "id" : column.moment ? "moment" : null, scope: tag === "th" ? "col" : null }, content);
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    make("table", {},
      make("caption", { class: hidden ? "unseen" : null }, caption),
      make("thead", {}, make("tr", {}, columns.map((column) => cell("th", column, column.title)))),
      make("tbody", {}, rows.map((row) => make("tr", { "data-key": key?.(row) }, columns.map((column) => cell("td", column, column.of(row))))))));
}

/** A card: heading, what it says, and its content. */
export function card(title, remark, content, { wide = false, name } = {}) {
  return make("section", { class: wide ? "card wide" : "card", "data-card": name ?? title, "aria-label": title },
    make("h2", {}, title), remark ? make("p", { class: "remark" }, remark) : null, content);
}

/** Name and value pairs. */
export function facts(pairs) {
  return make("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value instanceof Node ? value : shown(value)))));
}
