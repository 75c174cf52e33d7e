#!/usr/bin/env bash
# langchain-openai 1.7.4: of n=2 answers that are streamed it makes one, word by word from both, and `invoke` does so too once somebody watches.
#
# Expected: `ChatOpenAI(n=2)` gives the first answer, or streams each by itself, or refuses, as it refuses `streaming=True` beside n=2.
# What happens: `stream` gives the chunks of both answers as parts of one message: "The No, sky it is is blue.green.", which ended with "stoplength".
# `invoke` gives the first answer, but inside of `astream_events` it streams by itself, so that the node's own result is the mixed text.
# Nothing warns.
# Whom it matters to: whoever samples several answers with it, for best of n or for training, and whose program is then run by a server or a user
# interface that follows its events.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv --without-pip "$folder/venv"
"${PYTHON:-python3}" -m pip --python "$folder/venv/bin/python" install -q --no-compile --disable-pip-version-check langchain-openai==1.7.4 openai==3.57.0
cat >"$folder/try.py" <<'PY'
import asyncio, json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI

PARTS = (("The ", "No, "), ("sky ", "it is "), ("is blue.", "green."))
REASONS = ("stop", "length")

class Server(BaseHTTPRequestHandler):
    """Two answers, whole or as chunks of one choice each, as OpenAI's API gives them."""
    def log_message(self, *_): pass
    def do_POST(self):
        streamed = json.loads(self.rfile.read(int(self.headers["content-length"]))).get("stream")
        self.send_response(200); self.send_header("content-type", "text/event-stream" if streamed else "application/json"); self.end_headers()
        if not streamed:
            choices = [{"index": index, "message": {"role": "assistant", "content": "".join(part[index] for part in PARTS)}, "finish_reason": reason}
                       for index, reason in enumerate(REASONS)]
            self.wfile.write(json.dumps({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}).encode())
            return
        for part in PARTS:
            for index, text in enumerate(part):
                self.chunk(index, {"role": "assistant", "content": text}, None)
        for index, reason in enumerate(REASONS):
            self.chunk(index, {}, reason)
        self.wfile.write(b"data: [DONE]\n\n")
    def chunk(self, index, delta, reason):
        choice = {"index": index, "delta": delta, "finish_reason": reason}
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
options = {"model": "m", "base_url": f"http://127.0.0.1:{server.server_port}/v1", "api_key": "none", "n": 2}
model = ChatOpenAI(**options)

stream = iter(model.stream("q"))
streamed = next(stream)
for chunk in stream:
    streamed += chunk
watched = []

async def watch():
    node = RunnableLambda(lambda question: watched.append(model.invoke(question).content))
    async for _ in node.astream_events("q"): pass

asyncio.run(watch())
try:
    ChatOpenAI(**options, streaming=True)
    refused = False
except ValueError:
    refused = True
seen = (model.invoke("q").content, streamed.content, streamed.response_metadata["finish_reason"], watched, refused)
print(f"langchain-openai {version('langchain-openai')}: invoke gives {seen[0]!r}; stream gives {seen[1]!r} with the reason {seen[2]!r}")
print(f"the same invoke inside of astream_events gives {watched}; streaming=True is refused: {refused}")
mixed = "The No, sky it is is blue.green."
sys.exit(seen != ("The sky is blue.", mixed, "stoplength", [mixed], True))
PY
"$folder/venv/bin/python" -W ignore "$folder/try.py" || { echo "the behaviour has changed"; exit 1; }
