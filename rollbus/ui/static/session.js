// Whose session it is, in the header: log in with the owner's token once, log out.

import { askSession, closeSession, openSession } from "./ask.js";
import { make } from "./dom.js";
import { openDialog } from "./keys.js";

const NAME = "rollbus-judge";
let judge = null, isOwner = false, place = null;

/** Who judges and acts in this session; null without one. */
export const who = () => judge;

/** Whether the session may do more than judge. */
export const mayAct = () => isOwner;

/** Keep the place in the header up to date. */
export async function watchSession(element) {
  place = element;
  try { take(await askSession()); } catch { take({ judge: null, is_owner: false }); }
  draw();
}

function take(session) {
  judge = session.judge;
  isOwner = session.is_owner;
}

function draw() {
  place.replaceChildren(...(judge === null
    ? [make("button", { type: "button", class: "more", onclick: logIn }, "log in")]
    : [make("span", {}, judge), " ", make("button", { type: "button", class: "more", onclick: logOut }, "log out")]));
}

/** Ask for the token, and for the name that verdicts will carry. */
export function logIn() {
  const answer = make("p", { class: "label", role: "status" });
  const dialog = openDialog("Log in to judge and to act",
    make("p", { class: "remark" }, "The owner's token is in .rollbus/secrets/token; a person's own, which only judges, is made by “rollbus token create NAME --may feedback”. It opens a session of 12 hours and is not kept."),
    make("form", { class: "lines", onsubmit: async (event) => {
      event.preventDefault();
      const { token, name } = Object.fromEntries(new FormData(event.currentTarget));
      try {
        take(await openSession(token.trim(), name.trim()));
        localStorage.setItem(NAME, judge);
        dialog.close();
        changed();
      } catch (error) {
        answer.className = "error";
        answer.textContent = error.message;
      }
    } },
    make("label", {}, "token", make("input", { name: "token", type: "password", autocomplete: "off", required: true })),
    make("label", {}, "your name, which your verdicts carry (a person's own token has it)", make("input", { name: "name", value: localStorage.getItem(NAME) ?? "operator", pattern: "[a-z0-9][a-z0-9_\\-]*", title: "small letters, digits, _ and -", autocomplete: "off", required: true })),
    answer, make("button", { type: "submit" }, "Log in")));
  dialog.querySelector("[name=token]").focus();
}

async function logOut() {
  try { await closeSession(); } finally { take({ judge: null, is_owner: false }); changed(); }
}

function changed() {
  draw();
  dispatchEvent(new Event("rollbus:again"));
}
