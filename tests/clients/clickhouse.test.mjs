// ClickHouse's official JavaScript client against the local endpoint.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, test } from "node:test";

const { CLICKHOUSE, OWNER, READER, NODE_FOLDER } = process.env;
const { createClient } = createRequire(join(NODE_FOLDER, "package.json"))("@clickhouse/client");
const connect = (options = {}) => createClient({ url: CLICKHOUSE, username: "default", password: OWNER, database: "js", ...options });
const rows = async (client, query, options = {}) => (await client.query({ query, format: "JSONEachRow", ...options })).json();

let client;
before(async () => {
  const maker = connect({ database: "default" });
  await maker.command({ query: "CREATE DATABASE js" });
  await maker.close();
  client = connect();
  await client.command({ query: "CREATE TABLE numbers (id UInt32, name String) ENGINE = MergeTree ORDER BY id" });
});
after(() => client.close());

test("it answers a ping", async () => assert.equal((await client.ping()).success, true));

test("rows are inserted, plain and compressed, and the summary counts them", async () => {
  const values = Array.from({ length: 20000 }, (_, id) => ({ id, name: `n${id}` }));
  const { summary } = await client.insert({ table: "numbers", values, format: "JSONEachRow" });
  assert.equal(summary.written_rows, "20000");
  const packing = connect({ compression: { request: true, response: true } });
  await packing.insert({ table: "numbers", values, format: "JSONEachRow" });
  const [counted] = await rows(packing, "SELECT count() AS n, sum(id) AS s FROM numbers");
  assert.deepEqual([Number(counted.n), Number(counted.s)], [40000, 399980000]);
  await packing.close();
});

test("values are bound on the server", async () => {
  const text = "'; DROP TABLE numbers --";
  const query_params = { text, list: [1, 2, 3], at: new Date(0) };
  const [row] = await rows(client, "SELECT {text:String} AS text, arraySum({list:Array(UInt8)}) AS sum, toUnixTimestamp({at:DateTime}) AS at", { query_params });
  assert.equal(row.text, text);
  assert.equal(Number(row.sum), 6);
  assert.equal(Number(row.at), 0);
});

test("a large result streams", async () => {
  const result = await client.query({ query: "SELECT number FROM numbers(500000)", format: "JSONEachRow" });
  let count = 0, sum = 0;
  for await (const part of result.stream()) {
    for (const row of part) { count += 1; sum += Number(row.json().number); }
  }
  assert.deepEqual([count, sum], [500000, 124999750000]);
});

test("an error has the code and the type of its cause", async () => {
  await assert.rejects(client.query({ query: "SELECT * FROM nowhere" }), (error) => error.code === "60" && error.type === "UNKNOWN_TABLE");
  await assert.rejects(client.command({ query: "SELECT 1; DROP TABLE numbers" }), (error) => error.code === "62");
});

test("a session keeps its temporary table, and a setting holds for its request alone", async () => {
  const session = connect({ session_id: "js-session" });
  await session.command({ query: "CREATE TEMPORARY TABLE mine AS SELECT 7 AS n" });
  assert.equal(Number((await rows(session, "SELECT n FROM mine"))[0].n), 7);
  const asked = "SELECT getSetting('max_threads') AS n";
  const before = (await rows(session, asked))[0].n;
  assert.equal(Number((await rows(session, asked, { clickhouse_settings: { max_threads: 3 } }))[0].n), 3);
  assert.equal((await rows(session, asked))[0].n, before);
  await session.close();
  await assert.rejects(rows(client, "SELECT n FROM mine"), (error) => error.code === "60");
});

test("a wrong password is refused, and the reader reads only", async () => {
  const stranger = connect({ password: "wrong" });
  await assert.rejects(rows(stranger, "SELECT 1"), (error) => error.code === "516");
  await stranger.close();
  const reader = connect({ username: "readonly", password: READER });
  assert.equal(Number((await rows(reader, "SELECT count() AS n FROM numbers"))[0].n), 40000);
  await assert.rejects(reader.command({ query: "DROP TABLE numbers" }), (error) => error.code === "164");
  await assert.rejects(reader.insert({ table: "numbers", values: [{ id: 1, name: "x" }], format: "JSONEachRow" }), (error) => error.code === "164");
  await reader.close();
});
