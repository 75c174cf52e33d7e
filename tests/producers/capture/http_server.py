"""A model server on a real socket, for what only a connection shows: framing, compression, redirects, retries."""

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.producers.openai_server import Body, completion, streamed

PIECE_BYTES = 97
"""Of a stream: no event is whole in one piece."""


class ModelServer(ThreadingHTTPServer):
    """Answers chat completions with what they ask for, and remembers the requests."""

    def __init__(self) -> None:
        """Listen on a free port."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[Body] = []
        self.statuses: list[int] = []
        """Of the next answers, before the good ones."""
        self.url = f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving() -> Iterator[ModelServer]:
    """A server that runs inside the block."""
    with ModelServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def answer_to(request: Body) -> Body:
    """The whole answer, with the fields that the request asks for."""
    answer = completion()
    for choice in answer["choices"]:
        if not request.get("logprobs"):
            choice["logprobs"] = None
        if not request.get("return_token_ids"):
            del choice["token_ids"]
    if not request.get("return_token_ids"):
        del answer["prompt_token_ids"]
    return answer


def events_of(request: Body) -> list[Body]:
    """The same as a stream."""
    chunks = streamed() if (request.get("stream_options") or {}).get("include_usage") else streamed()[:-1]
    for chunk in chunks:
        for choice in chunk["choices"]:
            if not request.get("logprobs"):
                choice["logprobs"] = None
            if not request.get("return_token_ids"):
                choice.pop("token_ids", None)
        if not request.get("return_token_ids"):
            chunk.pop("prompt_token_ids", None)
    return chunks


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ModelServer

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append(request)
        if self.path.startswith("/moved"):
            self._send(307, b"", {"location": "/v1/chat/completions"})
        elif self.server.statuses:
            self._send(self.server.statuses.pop(0), b'{"error": {"message": "busy"}}', {})
        elif request.get("stream"):
            events = "".join(f": alive\n\ndata: {json.dumps(event)}\n\n" for event in events_of(request))
            self._send(200, f"{events}data: [DONE]\n\n".encode(), {"content-type": "text/event-stream"}, chunked=True)
        else:
            self._send(200, json.dumps(answer_to(request)).encode(), {"content-type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str], *, chunked: bool = False) -> None:
        self.send_response(status)
        if "gzip" in self.headers.get("x-want", ""):
            body, headers = gzip.compress(body), {**headers, "content-encoding": "gzip"}
        length = {"transfer-encoding": "chunked"} if chunked else {"content-length": str(len(body))}
        for name, value in {**headers, **length}.items():
            self.send_header(name, value)
        self.end_headers()
        if not chunked:
            self.wfile.write(body)
            return
        for start in range(0, len(body), PIECE_BYTES):
            piece = body[start : start + PIECE_BYTES]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")
