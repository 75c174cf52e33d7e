"""DNS rebinding in a real Chromium: a page whose name comes to mean this machine reads nothing of any server.

    make test-ui        pytest tests/hostile/rebinding.py

The name `evil.test` has two addresses. The stranger serves the page at ::1, which a browser asks first, and then stops
listening there. The page's next request, still of its own origin, goes to 127.0.0.1 and the same port: to one of our
servers, with the right credentials even. Chromium runs in a mount namespace with a hosts file of its own.
"""

import html
import http.server
import json
import re
import socket
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from rollbus.stack_settings import HOST
from tests.hostile.doors import Place
from tests.hostile.places import all_places, grpc_port, places
from tests.services.endpoint.guarded_endpoint import guarded
from tests.web import QuietHandler, serve

__all__ = ["all_places", "grpc_port", "guarded", "places"]
pytestmark = pytest.mark.services

NAME = "evil.test"
TRIES, PAUSE_MS = 40, 250
"""Of the page, until the stranger has stopped listening."""
BUDGET_MS = 30_000
PAGE = """<body>waiting<script>
(async () => {
  const {path, ...how} = %s;
  for (let attempt = 0; attempt < %d; attempt++) {
    try {
      const answer = await fetch(path, how);
      document.body.textContent = JSON.stringify([answer.status, await answer.text()]);
      return;
    } catch (error) { document.body.textContent = String(error); }
    await new Promise(done => setTimeout(done, %d));
  }
})();
</script>"""


class Stranger(http.server.HTTPServer):
    """Answers one request with the page, then is gone."""

    address_family = socket.AF_INET6

    def __init__(self, port: int, page: bytes) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                for name, value in {"content-type": "text/html", "content-length": str(len(page))}.items():
                    self.send_header(name, value)
                self.send_header("connection", "close")
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, *_: object) -> None: ...

        super().__init__(("::1", port), Handler)

    def serve_once(self) -> None:
        self.handle_request()
        self.server_close()


class Open(QuietHandler):
    """Looks at no name."""

    def do_GET(self) -> None:
        self.answer("secret")


def read_by_rebinding(port: int, request: Mapping[str, object], folder: Path) -> tuple[int, str]:
    """Return status and text that the stranger's page has read of the server at 127.0.0.1 and this port."""
    page = (PAGE % (json.dumps(request), TRIES, PAUSE_MS)).encode()
    stranger = threading.Thread(target=Stranger(port, page).serve_once)
    stranger.start()
    hosts = folder / "hosts"
    hosts.write_text(f"::1 {NAME}\n{HOST} {NAME}\n{HOST} localhost\n")
    chromium = f"chromium --headless=new --no-sandbox --disable-gpu --user-data-dir={folder}/profile"
    look = f"{chromium} --virtual-time-budget={BUDGET_MS} --dump-dom http://{NAME}:{port}/"
    shell = f"mount --bind {hosts} /etc/hosts && exec {look}"
    completed = subprocess.run(["unshare", "-m", "sh", "-c", shell], capture_output=True, text=True, timeout=180)
    stranger.join(timeout=120)
    body_match = re.search(r"<body>(.*)</body>", completed.stdout, re.DOTALL)
    assert body_match, completed.stdout + completed.stderr
    status, text = json.loads(html.unescape(body_match[1]))
    return status, text


def test_a_server_that_looks_at_no_name_is_read(tmp_path: Path) -> None:
    """The attack itself works here; without this the test below would show nothing."""
    with serve(Open) as address:
        port = int(address.rpartition(":")[2])
        assert read_by_rebinding(port, {"path": "/"}, tmp_path) == (200, '"secret"')


def test_no_server_of_rollbus_is_read_even_with_its_credentials(places: list[Place], tmp_path: Path) -> None:
    for place in places:
        headers = {name: value for name, value in {**place.headers, **place.credentials}.items() if name != "cookie"}
        request: dict[str, object] = {"path": place.path, "method": place.method, "headers": headers}
        if place.body:
            request["body"] = place.body.decode()
        folder = tmp_path / place.name
        folder.mkdir()
        status, text = read_by_rebinding(place.port, request, folder)
        assert status == 403, f"{place.name}: {status} {text}"
        assert NAME in text or "Host" in text or "host" in text, f"{place.name}: {text}"
