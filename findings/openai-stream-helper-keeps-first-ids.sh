#!/usr/bin/env bash
# openai 3.52.0: the helper `client.chat.completions.stream()` keeps a server's extra fields of the first chunk only.
#
# Expected: vLLM, SGLang and others send `token_ids` with each chunk of a choice. The helper puts the chunks together (text, log-probs,
# tool calls), so its final completion should have the ids of all of them, or none.
# What happens: the final completion has the text and the log-probs of all chunks, and the `token_ids` of the first chunk alone, without
# a warning. `create(stream=True)` gives each chunk with its ids.
# Whom it matters to: everyone who trains on sampled tokens or counts them: ids and log-probs differ in length.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check openai==3.52.0
cat >"$folder/try.py" <<'PY'
import json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import openai

class Server(BaseHTTPRequestHandler):
    """Three chunks with an id each, then the end, as vLLM sends them."""
    def log_message(self, *_): pass
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200); self.send_header("content-type", "text/event-stream"); self.end_headers()
        for token_id, text in ((10, "a "), (11, "b "), (12, "c ")):
            logprobs = {"content": [{"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
            self.chunk({"content": text, "role": "assistant"}, None, token_ids=[token_id], logprobs=logprobs)
        self.chunk({}, "stop")
        self.wfile.write(b"data: [DONE]\n\n")
    def chunk(self, delta, finish_reason, **more):
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, **more}
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")
messages = [{"role": "user", "content": "q"}]
raw = [token_id for chunk in client.chat.completions.create(model="m", messages=messages, stream=True)
       for choice in chunk.choices for token_id in (choice.model_extra or {}).get("token_ids", [])]
with client.chat.completions.stream(model="m", messages=messages) as stream:
    for _ in stream: pass
    (choice,) = stream.get_final_completion().choices
helper = (choice.model_extra or {}).get("token_ids")
print(f"openai {openai.__version__}: create(stream=True) gives ids {raw}; stream() gives ids {helper} beside {len(choice.logprobs.content)} log-probs")
sys.exit((raw, helper, len(choice.logprobs.content)) != ([10, 11, 12], [10], 3))
PY
"$folder/venv/bin/python" "$folder/try.py" || { echo "the behaviour has changed"; exit 1; }
