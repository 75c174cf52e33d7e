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

const get = (address) => fetch(address, { headers: { authorization: `Bearer ${localStorage.getItem(KEY) ?? ""}` } });

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

/** Write something into the log; only the owner's token opens this door. */
export async function send(what, values, token) {
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
