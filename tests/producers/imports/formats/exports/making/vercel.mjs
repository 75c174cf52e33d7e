// Writes what Vercel's AI SDK traces of an agent with three calls of one tool, blocking and streamed: by its names of
// today, and by those that it had until version 6. It needs Node 22.
// npm i ai @ai-sdk/otel @ai-sdk/openai-compatible @opentelemetry/api @opentelemetry/sdk-trace-node @opentelemetry/sdk-trace-base zod
// node vercel.mjs vercel.json
import http from "node:http"; import fs from "node:fs";
import { generateText, streamText, tool, stepCountIs } from "ai";
import { LegacyOpenTelemetry, OpenTelemetry } from "@ai-sdk/otel";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { NodeTracerProvider } from "@opentelemetry/sdk-trace-node";
import { InMemorySpanExporter, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";
import { z } from "zod";
const server = http.createServer((req, res) => { let b=""; req.on("data", d => b+=d); req.on("end", () => {
  const q = JSON.parse(b); const done = q.messages.some(m => m.role === "tool");
  const calls = ["bolts","nuts","bolts"].map((item,i) => ({index:i, id:`call-${i+1}`, type:"function", function:{name:"stock", arguments: JSON.stringify({item})}}));
  const message = done ? {role:"assistant", content:"There are 7."} : {role:"assistant", content:null, tool_calls: calls};
  const reason = done ? "stop" : "tool_calls"; const usage={prompt_tokens:3, completion_tokens:2, total_tokens:5}; const head={id:"chatcmpl-1", model:"agent@3", created:1};
  if (q.stream) { res.setHeader("content-type","text/event-stream");
    const chunks=[{...head, object:"chat.completion.chunk", choices:[{index:0, delta:message, finish_reason:null}]},{...head, choices:[{index:0, delta:{}, finish_reason:reason}]},{...head, choices:[], usage}];
    for (const c of chunks) res.write(`data: ${JSON.stringify(c)}\n\n`); res.end("data: [DONE]\n\n"); }
  else { res.setHeader("content-type","application/json"); res.end(JSON.stringify({...head, object:"chat.completion", choices:[{index:0, message, finish_reason:reason}], usage})); } }); });
await new Promise(r => server.listen(0, "127.0.0.1", r));
const exporter = new InMemorySpanExporter();
const provider = new NodeTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] });
provider.register();
const ai = createOpenAICompatible({ name: "local", baseURL: `http://127.0.0.1:${server.address().port}/v1`, apiKey: "k", includeUsage: true });
const stock = tool({ description: "Count.", inputSchema: z.object({ item: z.string() }), execute: async ({ item }) => `${item}: 7` });
const options = { model: ai("agent"), tools: { stock }, stopWhen: stepCountIs(3), instructions: "You count.", prompt: "How many?", temperature: 0.5 };
const val = v => Array.isArray(v) ? {arrayValue:{values:v.map(val)}} : typeof v==="number" ? (Number.isInteger(v)?{intValue:String(v)}:{doubleValue:v}) : typeof v==="boolean" ? {boolValue:v} : {stringValue:String(v)};
const attrs = o => Object.entries(o).map(([key,value]) => ({key, value: val(value)}));
const ns = ([a,b]) => String(BigInt(a)*1000000000n+BigInt(b));
async function trace(integration) {
  const telemetry = { functionId: "keeper", integrations: [integration] };
  await generateText({ ...options, telemetry });
  for await (const _ of streamText({ ...options, telemetry }).textStream) {}
  await new Promise(r => setTimeout(r, 200));
  const spans = exporter.getFinishedSpans().map(x => ({traceId:x.spanContext().traceId, spanId:x.spanContext().spanId, parentSpanId:x.parentSpanContext?.spanId, name:x.name, kind:1, startTimeUnixNano:ns(x.startTime), endTimeUnixNano:ns(x.endTime), attributes:attrs(x.attributes), events:x.events.map(e=>({timeUnixNano:ns(e.time), name:e.name, attributes:attrs(e.attributes??{})})), status:{code:x.status.code===2?2:0}}));
  exporter.reset();
  return [{resourceSpans:[{resource:{attributes:[]}, scopeSpans:[{scope:{name:"ai"}, spans}]}]}];
}
const today = await trace(new OpenTelemetry()), legacy = await trace(new LegacyOpenTelemetry());
fs.writeFileSync(process.argv[2], JSON.stringify({ today, legacy }) + "\n");
server.close();
process.exit(0);
