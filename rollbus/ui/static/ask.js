// Questions to the server, by name; an answer becomes a list of objects, one per row.

const KEY = "rollbus-page";

/** Keep the page's token if the address has just brought it. Only this origin reads it; a cookie would go to every port. */
export function takeToken() {
  const [, token] = location.hash.match(/^#token=(\w+)$/) ?? [];
  if (!token) return;
  localStorage.setItem(KEY, token);
  history.replaceState(null, "", `${location.pathname}${location.search}#/`);
}

/** Where an event stream is: it cannot send headers. */
export const liveAt = (values) => `/api/live?${new URLSearchParams({ ...values, token: localStorage.getItem(KEY) ?? "" })}`;

const bearer = () => ({ authorization: `Bearer ${localStorage.getItem(KEY) ?? ""}` });
const get = (address) => fetch(address, { headers: bearer() });

/** ask("step_metrics", {run: "main"}) → [{step: 1, …}, …]; rejects with what the server says. */
export async function ask(name, values = {}) {
  const answer = await answered(await get(`/api/ask/${name}?${new URLSearchParams(values)}`));
  return answer.rows.map((row) => Object.fromEntries(answer.columns.map((column, at) => [column, row[at]])));
}

/** How far each consumer group is behind, from Kafka: {groups: [{group, topic, members, partitions, lag}, …], error?}. */
export async function askLag() {
  const response = await get("/api/lag");
  return response.ok ? response.json() : { groups: [], error: `the server answered ${response.status}` };
}

/** What `rollbus status --json` says: {verdict, funnels: […], health: {processes, groups, runs, problems, …}, error}. */
export async function askHealth() {
  const response = await get("/api/health");
  return response.ok ? response.json() : { error: `the server answered ${response.status}` };
}

let reasons = null;

/** What a reason of a drop means: {what, remedy}, in words about one episode. Without an answer it is asked again next time. */
export async function meaningOf(reason) {
  reasons ??= get("/api/reasons").then(answered);
  let meanings = {};
  try { meanings = await reasons; } catch { reasons = null; }
  return meanings[reason] ?? { what: `was dropped as ${reason.replaceAll("_", " ")}`, remedy: "" };
}

/** The SQL of a question. */
export const askSql = async (name) => (await answered(await get(`/api/sql/${name}`))).sql;

/** What the owner can do: [{name, title, does, needs}, …]. */
export const askActions = async () => answered(await get("/api/actions"));

/** Write something into the log: verdicts, data-sets. It takes a session, which the browser's cookie names. */
export const send = (what, values) => post(what, values, localStorage.getItem(KEY) ?? "");

/** Whose session it is: {judge}, which is null without one. */
export const askSession = async () => answered(await get("/api/session"));

/** Open a session with the owner's token, which is not kept. */
export const openSession = (token, judge) => post("session", { judge }, token);

export const closeSession = async () => answered(await fetch("/api/session", { method: "DELETE", headers: bearer() }));

async function post(what, values, token) {
  const headers = { "content-type": "application/json", authorization: `Bearer ${token}` };
  return answered(await fetch(`/api/${what}`, { method: "POST", headers, body: JSON.stringify(values) }));
}

async function answered(response) {
  const text = await response.text();
  let answer;
  try { answer = JSON.parse(text); } catch { answer = { error: text.trim() }; }
  if (!response.ok) throw Object.assign(new Error(answer.error || `the server answered ${response.status}`), { unknown: answer.unknown });
  return answer;
}
