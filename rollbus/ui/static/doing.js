// What the owner does: each with what it will do, the command that does it, a reason and a confirmation.

import { askActions, send } from "./ask.js";
import { make } from "./dom.js";
import { openDialog } from "./keys.js";
import { mayAct } from "./session.js";

const FIELDS = { version: ["version", { inputmode: "numeric", pattern: "[0-9]+" }], episode: ["episode", {}], label: ["label, as NAME=VALUE", { placeholder: "user=ann", pattern: "[^=]+=.+" }] };

/** Buttons for these actions; nothing without a session of the owner's. */
export async function doing(run, names, given = {}) {
  if (!mayAct()) return null;
  const actions = await askActions();
  return make("div", { class: "verdicts", role: "group", "aria-label": "Act", "data-key": "act" }, names.map((name) => {
    const action = actions.find((each) => each.name === name);
    return make("button", { type: "button", class: "say", "data-key": name, onclick: () => askFirst(run, action, given) }, `${action.title} …`);
  }));
}

function askFirst(run, action, given) {
  const answer = make("div", { role: "status" });
  const fields = action.needs && given[action.needs] === undefined ? make("label", {}, FIELDS[action.needs][0], make("input", { name: action.needs, required: true, autocomplete: "off", ...FIELDS[action.needs][1] })) : null;
  const values = (form) => {
    const { version, ...rest } = { ...given, ...Object.fromEntries(new FormData(form)) };
    return { action: action.name, run, ...rest, ...(version === undefined ? {} : { version: Number(version) }) };
  };
  const form = make("form", { class: "lines", onsubmit: async (event) => {
    event.preventDefault();
    const shown = form.dataset.shown === JSON.stringify(values(form)); // it runs only as it was shown
    form.querySelector("[type=submit]").disabled = true;
    say(answer, shown ? "doing it …" : "looking at what it would do …");
    try {
      const { command, output } = await send("actions", { ...values(form), is_preview: !shown });
      say(answer, shown ? "Done. The log has it." : "This command will run:", command, output);
      if (shown) { form.querySelector("[type=submit]").remove(); return; }
      form.dataset.shown = JSON.stringify(values(form));
      form.querySelector("[type=submit]").textContent = `Yes: ${action.title.toLowerCase()}`;
    } catch (error) { say(answer, error.message, null, null, true); }
    form.querySelector("[type=submit]").disabled = false;
  }, oninput: () => { delete form.dataset.shown; form.querySelector("[type=submit]").textContent = "Show what it will do"; } },
  fields, make("label", {}, "reason, which the log keeps", make("input", { name: "reason", required: true, maxlength: 500, autocomplete: "off" })), answer, make("button", { type: "submit" }, "Show what it will do"));
  openDialog(action.title, make("p", {}, action.does), form);
  form.querySelector("input").focus();
}

function say(place, words, command = null, output = null, isError = false) {
  place.replaceChildren(...[make("p", { class: isError ? "error" : "label" }, words), command ? make("pre", { tabindex: 0 }, command) : null, output ? make("pre", { tabindex: 0 }, output) : null].filter(Boolean));
}
