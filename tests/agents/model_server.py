"""An OpenAI-compatible server on a real port that remembers every answer, and by a seed fails, stalls and cuts.

It calls the tools that it is offered, then answers in words. Every request names the episode that it belongs to, as
`<e1>` in a message, so that a turn in a wrong episode is seen.
"""

import hashlib
import itertools
import json
import random
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from tests.producers.openai_server import Body, logprobs_of

Fate = Literal["whole", "failed", "stalled", "cut"]
STALL_S = 600.0
"""Longer than any client here waits; the end of the test ends it."""
EPISODE = re.compile(r"<(e\d+)>")


@dataclass(slots=True)
class ModelAnswer:
    """One request, and what became of it."""

    response_id: str
    episode: str
    fate: Fate
    streamed: bool
    prompt_ids: list[int]
    ids: list[int]
    logprobs: list[float]
    message: Body
    last: Any
    """The last message of the prompt."""
    is_constrained: bool
    """Whether the request let only some tokens through."""


@dataclass(slots=True)
class Faults:
    """What goes wrong: drawn by a seed, none without one."""

    seed: int | None = None
    share: float = 0.3
    stalls: int = 0
    """How many requests may stall: each costs the client's whole time-out."""
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        """Begin at the seed."""
        self._chance = random.Random(self.seed)

    def draw(self) -> Fate:
        """Return the fate of the next request."""
        if self.seed is None or self._chance.random() >= self.share:
            return "whole"
        if self.stalls and self._chance.random() < 0.5:
            self.stalls -= 1
            return "stalled"
        return self._chance.choice(["failed", "cut"])


class ModelServer:
    """Answers on a loopback port, in a thread for each request."""

    def __init__(self, faults: Faults, *, arguments: Mapping[str, Any] | None = None) -> None:
        """Give tools these arguments, by parameter; other texts repeat the episode's name."""
        self.faults, self._arguments = faults, arguments or {}
        self.answers: list[ModelAnswer] = []
        self._lock, self.over = threading.Lock(), threading.Event()
        self._numbers = itertools.count(1)
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.model = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The base URL for clients."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def close(self) -> None:
        """Stop, and end what stalls."""
        self.over.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def answer(self, body: Body) -> ModelAnswer:
        """Decide what to answer and what becomes of it, and remember it."""
        with self._lock:
            number, fate = next(self._numbers), self.faults.draw()
        text = json.dumps(body["messages"], ensure_ascii=False)
        episode_match = EPISODE.search(text)
        count = 2 + number % 3
        answered = ModelAnswer(
            response_id=f"chatcmpl-{number}",
            episode=episode_match[1] if episode_match else "",
            fate=fate,
            streamed=bool(body.get("stream")),
            prompt_ids=list(hashlib.sha256(text.encode()).digest()[:5]),
            ids=[number * 10 + index for index in range(count)],
            logprobs=[-(number * 10 + index) / 1024 for index in range(count)],
            message=self._message(body, f"<{episode_match[1] if episode_match else ''}>", number),
            last=body["messages"][-1],
            is_constrained="response_format" in body or body.get("tool_choice") not in (None, "auto", "none"),
        )
        with self._lock:
            self.answers.append(answered)
        return answered

    def _message(self, body: Body, episode: str, number: int) -> Body:
        messages, tools = body["messages"], body.get("tools") or []
        schema = ((body.get("response_format") or {}).get("json_schema") or {}).get("schema")
        if schema:
            return {"content": json.dumps(self._fill(schema, episode))}
        question_place = max(index for index, earlier in enumerate(messages) if earlier["role"] == "user")
        if not tools or any(message["role"] == "tool" for message in messages[question_place:]):
            return {"content": f"answer {number} of {episode}"}
        calls = [
            {
                "id": f"call-{number}-{index}",
                "type": "function",
                "function": {
                    "name": tool["function"]["name"],
                    "arguments": json.dumps(self._fill(tool["function"].get("parameters") or {}, episode)),
                },
            }
            for index, tool in enumerate(tools)
        ]
        return {"content": None, "tool_calls": calls}

    def _fill(self, schema: Body, episode: str) -> Body:
        """Return arguments of a schema's types."""
        values: Body = {}
        for name, kind in (schema.get("properties") or {}).items():
            value_of_kind: Any = {"integer": 7, "number": 0.5, "boolean": False, "array": [], "object": {}}.get(
                kind.get("type")
            )
            values[name] = self._arguments.get(name, f"{name} of {episode}" if value_of_kind is None else value_of_kind)
        return values


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    model: ModelServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that has hung up is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Log nothing."""

    def do_POST(self) -> None:
        """Answer one request."""
        self.close_connection = True
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.endswith("/embeddings"):
            texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
            rows = [{"object": "embedding", "index": n, "embedding": [float(n), 1.0]} for n, _ in enumerate(texts)]
            usage = {"prompt_tokens": 1, "total_tokens": 1}
            self._send({"object": "list", "model": body["model"], "data": rows, "usage": usage})
            return
        answered = self.server.model.answer(body)
        if answered.fate == "stalled":
            self.server.model.over.wait(STALL_S)
            return
        if answered.fate == "failed":
            self._send({"error": {"message": "overloaded", "type": "server_error"}}, status=500)
            return
        with suppress(OSError):
            if answered.streamed:
                self._stream(answered, body)
            else:
                self._send(_whole(answered, body), cut=answered.fate == "cut")

    def _send(self, body: Body, *, status: int = 200, cut: bool = False) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if cut else data)

    def _stream(self, answered: ModelAnswer, body: Body) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.send_header("connection", "close")
        self.end_headers()
        chunks = list(_chunks(answered, body))
        for chunk in chunks[:2] if answered.fate == "cut" else [*chunks, None]:
            data = f"data: {'[DONE]' if chunk is None else json.dumps(chunk)}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        if answered.fate != "cut":
            self.wfile.write(b"0\r\n\r\n")


def _head(answered: ModelAnswer) -> Body:
    return {"id": answered.response_id, "model": "agent@3", "created": 1}


def _usage(answered: ModelAnswer) -> Body:
    prompt, sampled = len(answered.prompt_ids), len(answered.ids)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _finish(answered: ModelAnswer) -> str:
    return "tool_calls" if answered.message.get("tool_calls") else "stop"


def _token_fields(answered: ModelAnswer, body: Body, start: int, end: int | None) -> Body:
    """Return log-probs and ids of some of the tokens, as far as they are asked for."""
    token_fields: Body = {}
    ids = answered.ids[start:end]
    if body.get("logprobs"):
        token_fields["logprobs"] = logprobs_of([f"t{token_id}" for token_id in ids], answered.logprobs[start:end])
    if body.get("return_token_ids"):
        token_fields["token_ids"] = ids
    return token_fields


def _whole(answered: ModelAnswer, body: Body) -> Body:
    choice = {"index": 0, "finish_reason": _finish(answered), "message": {"role": "assistant", **answered.message}}
    head = _head(answered)
    if body.get("return_token_ids"):
        head["prompt_token_ids"] = answered.prompt_ids
    choices = [{**choice, **_token_fields(answered, body, 0, None)}]
    return {**head, "object": "chat.completion", "choices": choices, "usage": _usage(answered)}


def _chunks(answered: ModelAnswer, body: Body) -> Iterator[Body]:
    """Yield the answer in pieces: the first token, the others, the end, the usage."""
    head = {**_head(answered), "object": "chat.completion.chunk"}
    first = {**head, "prompt_token_ids": answered.prompt_ids} if body.get("return_token_ids") else head
    message = answered.message
    if calls := message.get("tool_calls"):
        opening = [
            {**call, "index": n, "function": {**call["function"], "arguments": ""}} for n, call in enumerate(calls)
        ]
        rest = [{"index": n, "function": {"arguments": call["function"]["arguments"]}} for n, call in enumerate(calls)]
        deltas: list[Body] = [{"role": "assistant", "content": None, "tool_calls": opening}, {"tool_calls": rest}]
    else:
        middle = len(message["content"]) // 2
        deltas = [
            {"role": "assistant", "content": message["content"][:middle]},
            {"content": message["content"][middle:]},
        ]
    for index, delta in enumerate(deltas):
        start, end = (0, 1) if index == 0 else (1, None)
        choice = {"index": 0, "delta": delta, "finish_reason": None, **_token_fields(answered, body, start, end)}
        yield {**(first if index == 0 else head), "choices": [choice]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(answered)}]}
    if (body.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": _usage(answered)}
