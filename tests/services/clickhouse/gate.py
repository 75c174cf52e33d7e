"""A gate before ClickHouse that passes everything on, but makes trouble with inserts when it is told to."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from tests.web import QuietHandler, serve

Trouble = Literal["full", "late", "cut"]
"""No room on the disk; written, and answered after the client has given up; written, and never answered."""

FULL = "Code: 243. DB::Exception: Cannot reserve 1.00 MiB, not enough space. (NOT_ENOUGH_SPACE)\n"
PASSED_BACK = ("Content-Type", "Content-Encoding")


class Gate(ThreadingHTTPServer):
    """The server; `trouble` is what the next inserts meet."""

    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        super().__init__((host, 0), Passing)
        self.behind = (host, port)
        self.trouble: Trouble | None = None
        self.requests_met: set[str] = set()
        """The ids of the inserts that met trouble; the client may send one twice by itself."""
        self.is_open = threading.Event()
        """Ends the wait of late answers."""


class Passing(QuietHandler):
    protocol_version = "HTTP/1.1"
    server: Gate

    def do_GET(self) -> None:
        self._pass_on(None)

    def do_POST(self) -> None:
        body = self.read_body()
        trouble = self.server.trouble if "insert_deduplication_token=" in self.path else None
        if trouble is not None:
            self.server.requests_met.update(parse_qs(urlsplit(self.path).query)["query_id"])
        if trouble == "full":
            self._answer(500, {"X-ClickHouse-Exception-Code": "243"}, FULL.encode())
        else:
            self._pass_on(body, trouble)

    def _pass_on(self, body: bytes | None, trouble: Trouble | None = None) -> None:
        connection = http.client.HTTPConnection(*self.server.behind, timeout=120)
        connection.request(self.command, self.path, body, dict(self.headers.items()))
        response = connection.getresponse()
        content = response.read()
        connection.close()
        if trouble == "late":
            self.server.is_open.wait(120)
        if trouble is not None:
            self.close_connection = True
            return
        headers = {name: value for name, value in response.getheaders() if name.startswith("x-clickhouse")}
        headers |= {name: response.headers[name] for name in PASSED_BACK if name in response.headers}
        self._answer(response.status, headers, content)

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def gate(host: str, port: int) -> Iterator[Gate]:
    """Return a gate that is there until the block ends."""
    server = Gate(host, port)
    with serve(server):
        try:
            yield server
        finally:
            server.is_open.set()
