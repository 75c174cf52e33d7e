// One key → the control of the page that has it as `data-key-of`: a button or a link is pressed, a field is entered.
// So a key exists where its control does, and the list of keys is never wrong.

import { make } from "./dom.js";

const OFF = "rollbus-keys-off";

/** Properties of a control that a key reaches. */
export const keyed = (key) => ({ "data-key-of": key, "aria-keyshortcuts": key });

/** Listen for keys; while somebody types, or a dialog is open, they are letters. */
export function watchKeys() {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const target = event.target;
    if (target.matches?.("input, textarea, select, [contenteditable]")) { if (event.key === "Escape") target.blur(); return; }
    if (event.key === "?") { event.preventDefault(); showKeys(); return; }
    if (localStorage.getItem(OFF)) return;
    const control = [...document.querySelectorAll("[data-key-of]")].find((each) => each.dataset.keyOf.split(" ").includes(event.key));
    if (!control || control.disabled) return;
    event.preventDefault();
    if (control.matches("input, textarea")) control.focus();
    else control.click();
  });
}

/** What a control is called, without its key. */
const nameOf = (control) => [...(control.closest("label") ?? control).childNodes].filter((node) => node.nodeName !== "KBD").map((node) => node.textContent).join("").trim();

/** What each key does here, and a switch for all of them. */
function showKeys() {
  const rows = [...document.querySelectorAll("[data-key-of]")].map((control) =>
    make("li", {}, control.dataset.keyOf.split(" ").flatMap((key) => [make("kbd", {}, key), " "]), nameOf(control)));
  const box = make("input", { type: "checkbox", checked: !localStorage.getItem(OFF), onchange: () => (box.checked ? localStorage.removeItem(OFF) : localStorage.setItem(OFF, "1")) });
  openDialog("Keys", rows.length ? make("ul", { class: "keys" }, rows) : make("p", {}, "This view has none. A case, or a search looked through one by one, does."), make("label", { class: "check" }, box, " keys do this"));
}

/** Show something over the page, until it is closed; returns the dialog. */
export function openDialog(title, ...content) {
  const dialog = document.getElementById("dialog");
  dialog.replaceChildren(make("h2", { id: "dialog-title" }, title), ...content.flat().filter(Boolean), make("p", {}, make("button", { type: "button", class: "more", onclick: () => dialog.close() }, "Close")));
  if (!dialog.open) dialog.showModal();
  return dialog;
}
