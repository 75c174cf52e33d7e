"""Small HTTP servers for tests, on a free port of loopback, each in a thread of its own."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any


class QuietHandler(BaseHTTPRequestHandler):
    """A handler that logs nothing, reads JSON and answers with it."""

    def read_body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def read_json(self) -> Any:
        return json.loads(self.read_body())

    def answer(self, content: Any, status: int = 200) -> None:
        self.answer_text(json.dumps(content), "application/json", status)

    def answer_text(self, text: str, content_type: str, status: int = 200) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def serve(server: HTTPServer | type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve until the block ends; yield the address without a path. Of a handler's class it makes the server."""
    if isinstance(server, type):
        server = ThreadingHTTPServer(("127.0.0.1", 0), server)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
