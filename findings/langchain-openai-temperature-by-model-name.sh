#!/usr/bin/env bash
# langchain-openai 1.7.3: the name of a model decides whether `temperature` is sent, on any server.
#
# Expected: `ChatOpenAI(base_url=…, temperature=0.3)` sends the temperature that the application gave, and none if it gave none. The name
# of a model on one's own server is free.
# What happens: a name that begins with "gpt-5" loses a temperature of 0.3 without a warning; a name that begins with "o1" and has none
# gets 1.0. Any other name behaves as expected.
# Whom it matters to: whoever serves a fine-tuned model under a name such as "gpt-5-support-bot" and samples, evaluates or trains at a
# stated temperature.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check langchain-openai==1.7.3 openai==3.52.0
cat >"$folder/try.py" <<'PY'
import json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from langchain_openai import ChatOpenAI

bodies = []

class Server(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_POST(self):
        bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        answer = json.dumps({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}).encode()
        self.send_response(200); self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer))); self.end_headers(); self.wfile.write(answer)

server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/v1"
sent = {}
for name in ("support-bot", "gpt-5-support-bot", "o1-distilled"):
    for given in (0.3, None):
        ChatOpenAI(model=name, base_url=url, api_key="none", **({} if given is None else {"temperature": given})).invoke("q")
        sent[name, given] = bodies[-1].get("temperature", "nothing")
        print(f"langchain-openai {version('langchain-openai')}: model {name!r}, temperature {given}: sent {sent[name, given]}")
sys.exit(sent != {("support-bot", 0.3): 0.3, ("support-bot", None): "nothing", ("gpt-5-support-bot", 0.3): "nothing",
                  ("gpt-5-support-bot", None): "nothing", ("o1-distilled", 0.3): 0.3, ("o1-distilled", None): 1.0})
PY
"$folder/venv/bin/python" "$folder/try.py" || { echo "the behaviour has changed"; exit 1; }
