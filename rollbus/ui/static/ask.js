// Questions to the server, by name; an answer becomes a list of objects, one per row.

/** ask("step_metrics", {run: "main"}) → [{step: 1, …}, …]; rejects with what the server says. */
export async function ask(name, values = {}) {
  const response = await fetch(`/api/ask/${name}?${new URLSearchParams(values)}`);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error ?? `the server answered ${response.status}`);
  return answer.rows.map((row) => Object.fromEntries(answer.columns.map((column, at) => [column, row[at]])));
}

/** How far each consumer group is behind, from Kafka: {groups: [{group, topic, members, partitions, lag}, …], error?}. */
export async function askLag() {
  const response = await fetch("/api/lag");
  return response.ok ? response.json() : { groups: [], error: `the server answered ${response.status}` };
}
