"""A scripted server of OpenAI's API on a real port, of the standard library alone, and the spans of each case.

Every program here makes the same calls of it: those of `CASES`.
"""

# It runs beside the newest releases, in environments of their own.
# mypy: ignore-errors

import base64
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
CASES = ("plain", "streamed", "two", "two streamed", "tools", "tools streamed", "left early", "cut off", "failed")
ITEMS = ("bolts", "nuts", "bolts")
CALLS = [
    {"id": f"call-{number}", "type": "function", "function": {"name": "stock", "arguments": json.dumps({"item": item})}}
    for number, item in enumerate(ITEMS, start=1)
]
STOCK = {
    "name": "stock",
    "description": "Say how many of an item are in stock.",
    "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
}


class Server:
    """Answers `Hello there`; where it is offered a tool, three calls of it at once, and after their results a text."""

    def __init__(self) -> None:
        """Listen on a free port."""
        self.case = "plain"
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._http.daemon_threads = True
        self._http.scripted = self
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def answer(self, body: Body) -> tuple[int, Iterable[Body]]:
        """Return the status, and the answer or its chunks."""
        if self.case == "failed":
            return 500, [{"error": {"message": "busy", "type": "server_error"}}]
        has_result = any(message["role"] == "tool" for message in body["messages"])
        text = "There are 7." if has_result else "Hello there"
        calls = CALLS if body.get("tools") and not has_result else None
        reason, count = "tool_calls" if calls else "stop", body.get("n") or 1
        usage = {"prompt_tokens": 3, "completion_tokens": 2 * count, "total_tokens": 3 + 2 * count}
        head = {"id": "chatcmpl-1", "created": 1, "model": "agent@3"}
        if not body.get("stream"):
            message = {
                "role": "assistant",
                "content": None if calls else text,
                **({"tool_calls": calls} if calls else {}),
            }
            choices = [{"index": index, "message": message, "finish_reason": reason} for index in range(count)]
            return 200, [{**head, "object": "chat.completion", "choices": choices, "usage": usage}]
        head["object"] = "chat.completion.chunk"
        chunks = [{**head, "choices": [choice]} for choice in _choices(text, calls, reason, count)]
        if self.case == "cut off":
            return 200, chunks[:2]
        is_counted = (body.get("stream_options") or {}).get("include_usage")
        return 200, [*chunks, *([{**head, "choices": [], "usage": usage}] if is_counted else [])]


def _choices(text: str, calls: list[Body] | None, reason: str, count: int) -> Iterator[Body]:
    """Yield the choices of chunks: a text in words, calls in two pieces of their arguments."""
    deltas: list[Body] = [{"content": word} for word in text.split(" ", 1)]
    deltas[1]["content"] = " " + deltas[1]["content"]
    if calls:
        deltas = []
        for index, call in enumerate(calls):
            written = call["function"]["arguments"]
            begun = {**call, "index": index, "function": {**call["function"], "arguments": written[:5]}}
            rest = {"index": index, "function": {"arguments": written[5:]}}
            deltas += [{"content": None, "tool_calls": [begun]}, {"tool_calls": [rest]}]
    deltas[0] = {"role": "assistant", **deltas[0]}
    for delta in [*deltas, {}]:
        for index in range(count):
            yield {"index": index, "delta": delta, "finish_reason": None if delta else reason}


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        scripted: Server = self.server.scripted
        status, parts = scripted.answer(body)
        is_stream = bool(body.get("stream")) and status == 200
        self.send_response(status)
        self.send_header("content-type", "text/event-stream" if is_stream else "application/json")
        self.send_header("connection", "close")
        self.end_headers()
        with suppress(OSError):
            for part in parts:
                self.wfile.write((f"data: {json.dumps(part)}\n\n" if is_stream else json.dumps(part)).encode())
            if is_stream and scripted.case != "cut off":
                self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: Any) -> None: ...


def request_of(spans: Iterable[Any]) -> Body:
    """Return finished spans of OpenTelemetry as an export request in OTLP's JSON."""
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    request: Body = MessageToDict(encode_spans(list(spans)))
    for group in request.get("resourceSpans", ()):
        group["resource"] = {}  # names the machine
        for scope in group["scopeSpans"]:
            for span in scope["spans"]:
                names = [name for name in ("traceId", "spanId", "parentSpanId") if name in span]
                span |= {name: base64.b64decode(span[name]).hex() for name in names}
                span["events"] = [event for event in span.get("events", ()) if event["name"] != "exception"]
                if message := span.get("status", {}).get("message"):  # a traceback names files
                    span["status"]["message"] = message.partition("Traceback")[0]
    return request


def play(cases: Mapping[str, Callable[[], object]], server: Server, collect: Callable[[], Any], path: str) -> None:
    """Run each case, and write what was traced of it under its name."""
    exports = {}
    for name, run in cases.items():
        server.case = name
        try:
            run()
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}")
        exports[name] = collect()
    with open(path, "w") as file:
        json.dump(exports, file, separators=(",", ":"))
        file.write("\n")
