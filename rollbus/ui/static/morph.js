// A new picture of the page → the page that is there, changed where they differ: focus, selection, scroll and what is
// open stay with the elements that stay. Elements are the same if their `data-key` is, else by their place.

const KEPT = new Set(["hidden", "open", "style"]); // what a reader has opened, and what a script sets while it draws

/** Make `old` like `made`; a chart takes the newer data, and a text that a reader has unfolded stays. */
export function morph(old, made) {
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name) && !KEPT.has(name)) old.removeAttribute(name);
  for (const { name, value } of made.attributes) if (old.getAttribute(name) !== value && !(name === "open")) old.setAttribute(name, value);
  if (old.renew && made.renew) { old.renew(made); return; }
  if (old.isUnfolded) return;
  morphChildren(old, [...made.childNodes]);
}

/** Make the children of an element like a list of nodes. */
export function morphChildren(parent, wanted) {
  const byKey = new Map([...parent.children].filter(keyOf).map((each) => [keyOf(each), each]));
  const wantedKeys = new Set(wanted.map(keyOf).filter(Boolean));
  let next = parent.firstChild;
  for (const node of wanted) {
    while (next && keyOf(next) && !wantedKeys.has(keyOf(next))) next = removed(next);
    const found = keyOf(node) ? byKey.get(keyOf(node)) : next && !keyOf(next) && isAlike(next, node) ? next : null;
    if (!found || !isAlike(found, node)) { parent.insertBefore(node, next); continue; }
    if (found === next) next = next.nextSibling;
    else parent.insertBefore(found, next);
    if (found.nodeType === Node.TEXT_NODE) { if (found.nodeValue !== node.nodeValue) found.nodeValue = node.nodeValue; }
    else if (document.activeElement !== found || !("value" in found)) morph(found, node);
  }
  while (next) next = removed(next);
}

const keyOf = (node) => node.dataset?.key ?? node.dataset?.card;
const isAlike = (one, other) => one.nodeType === other.nodeType && one.nodeName === other.nodeName && !one.renew === !other.renew;

function removed(node) {
  const after = node.nextSibling;
  for (const each of [node, ...(node.querySelectorAll?.("*") ?? [])]) each.close?.();
  node.remove();
  return after;
}
