// JSON text → its value, with every digit of its numbers: an id of twenty digits stays what was written.

const DEEPEST = 100;
// Levels of lists and objects: each is a call inside a call, here and where it is drawn. What is deeper is read as text.
const MARKS = /"[^"\\]*(?:\\.[^"\\]*)*"|[[{]|[\]}]/gs;

/** The value of a JSON text; throws for one that is none, or too deep. A number that JavaScript would change is kept as it is written. */
export function parse(text) {
  let depth = 0;
  for (const [mark] of text.matchAll(MARKS)) {
    depth += "[{".includes(mark) ? 1 : "]}".includes(mark) ? -1 : 0;
    if (depth > DEEPEST) throw new RangeError(`more than ${DEEPEST} levels`);
  }
  return JSON.parse(text, (_, value, written) =>
    (typeof value === "number" && JSON.rawJSON && written && String(value) !== written.source ? JSON.rawJSON(written.source) : value));
}

/** Whether a value has nothing in it: it is a text, a number, a truth value or null. */
export const isPlain = (value) => value === null || typeof value !== "object" || JSON.isRawJSON?.(value) === true;
