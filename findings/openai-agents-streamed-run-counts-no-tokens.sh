#!/usr/bin/env bash
# openai-agents 0.24.0: a streamed run against a server of one's own counts 0 tokens.
#
# Expected: `Runner.run` and `Runner.run_streamed` of the same agent on the same server report the same usage; where the server was not
# asked for it, the usage is unknown.
# What happens: the streamed request has no `stream_options`, so a server that follows OpenAI's API sends no usage, and the run reports
# 0 tokens as if that were the count. `ModelSettings(include_usage=True)` asks for it.
# Whom it matters to: everyone who bills, limits or compares runs by tokens on vLLM or another host than OpenAI's.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check openai-agents==0.24.0 openai==3.52.0
cat >"$folder/try.py" <<'PY'
import asyncio, json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI

USAGE = {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}

class Server(BaseHTTPRequestHandler):
    """Usage comes with an answer, and with a stream only where `stream_options` asks for it."""
    def log_message(self, *_): pass
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        head = {"id": "x", "created": 1, "model": "m"}
        if body.get("stream"):
            self.begin("text/event-stream")
            for delta, reason in (({"role": "assistant", "content": "a"}, None), ({}, "stop")):
                self.chunk({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
            if (body.get("stream_options") or {}).get("include_usage"):
                self.chunk({**head, "choices": [], "usage": USAGE})
            self.wfile.write(b"data: [DONE]\n\n")
        else:
            self.begin("application/json")
            choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
            self.wfile.write(json.dumps({**head, "object": "chat.completion", "choices": [choice], "usage": USAGE}).encode())
    def begin(self, kind):
        self.send_response(200); self.send_header("content-type", kind); self.end_headers()
    def chunk(self, fields):
        self.wfile.write(f"data: {json.dumps({'object': 'chat.completion.chunk', **fields})}\n\n".encode())

server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
set_tracing_disabled(True)

def agent(**settings):
    client = AsyncOpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")
    return Agent(name="a", model=OpenAIChatCompletionsModel(model="m", openai_client=client), model_settings=ModelSettings(**settings))

async def streamed(**settings):
    run = Runner.run_streamed(agent(**settings), "q")
    async for _ in run.stream_events(): pass
    return run.context_wrapper.usage.total_tokens

async def main():
    whole = (await Runner.run(agent(), "q")).context_wrapper.usage.total_tokens
    counts = (whole, await streamed(), await streamed(include_usage=True))
    print(f"openai-agents {version('openai-agents')}: tokens of a run {counts[0]}, streamed {counts[1]}, streamed with include_usage {counts[2]}")
    return counts

sys.exit(asyncio.run(main()) != (7, 0, 7))
PY
"$folder/venv/bin/python" "$folder/try.py" || { echo "the behaviour has changed"; exit 1; }
