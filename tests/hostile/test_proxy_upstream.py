"""What the proxy lets through, by the bytes that reach a real server behind it."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rollbus.local.process.ports import find_free_port, is_free
from rollbus.stack_settings import HOST
from tests.hostile.doors import BEARER, TOKEN, ask, command

ANSWER = (
    b"HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Between\r\nX-Between: of this hop\r\nKeep-Alive: timeout=9\r\n"
    b"Proxy-Authenticate: Basic\r\nUpgrade: h2c\r\nTrailer: X-Late\r\nX-Kept: yes\r\nContent-Length: 2\r\n\r\nok"
)
ELSEWHERE = "127.0.0.2"
"""An address of this machine that is none of the names under which it is asked."""


@dataclass(slots=True)
class Behind:
    """A model server behind the proxy, and the heads of the requests that came to it."""

    proxy: int
    port: int
    heads: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head.decode("latin-1"))
        if length_match := re.search(r"content-length: (\d+)", self.heads[-1], re.IGNORECASE):
            await reader.readexactly(int(length_match[1]))
        writer.write(ANSWER)
        await writer.drain()
        writer.close()

    async def ask(self, target: str, *headers: str, method: str = "GET", body: bytes = b"") -> tuple[int, bytes]:
        named = [f"Host: localhost:{self.proxy}", *headers, "Connection: close"]
        if body:
            named += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return await ask(self.proxy, "\r\n".join([f"{method} {target} HTTP/1.1", *named, "", ""]).encode() + body)

    @property
    def last(self) -> str:
        return self.heads[-1].lower()


@pytest.fixture
async def behind(tmp_path: Path) -> AsyncIterator[Behind]:
    """`rollbus proxy run` before a server that is not of this stack."""
    upstream = Behind(find_free_port(), find_free_port())
    options = ["--upstream", f"http://{ELSEWHERE}:{upstream.port}/v1", "--port", str(upstream.proxy)]
    server = await asyncio.start_server(upstream.serve, ELSEWHERE, upstream.port)
    with ExitStack() as stack:
        variables = {"ROLLBUS_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1"}
        stack.enter_context(command(tmp_path, "proxy", "run", *options, **variables))
        deadline = time.monotonic() + 120
        while is_free(upstream.proxy):
            assert time.monotonic() < deadline, (tmp_path / "proxy.log").read_text()
            await asyncio.sleep(0.1)
        yield upstream
    server.close()


BEARER_LINE = f"Authorization: {BEARER['authorization']}"
SENT_ON = {
    "/v1/models": "/v1/models",
    "/v1//models///x": "/v1/models/x",
    "/v1/models/org%2Fname": "/v1/models/org%2Fname",
    "/v1/files/..name..?at=/../x": "/v1/files/..name..?at=/../x",
    "/v1/http://evil.example/x": "/v1/http:/evil.example/x",
    "/v1/@evil.example": "/v1/@evil.example",
}
REFUSED_OPTIONS = (
    "/v1/../admin",
    "/v1/./models",
    "/v1/models/..",
    "/v1/%2e%2e/admin",
    "/v1/%2E%2e%2Fadmin",
    "/v1/.%2e/admin",
    "/v1/%252e%252e/admin",
    "/v1/..%5cadmin",
    "/v1/..;/admin",
    "/v1/..;x=y%2fadmin",
    "/v1/a%00b",
    "/v1/a%0d%0aX-Forged:%20yes",
    "/rollbus/episodes/e/v1/../../../../admin",
    "/rollbus/episodes/a%2Fv1%2Fb/v1/models",
    "/admin",
    "//evil.example/v1/models",
    "http://evil.example/v1/models",
    "/v2/v1/models",
)


async def test_only_paths_below_v1_that_read_in_one_way_reach_the_server(behind: Behind) -> None:
    for sent, arrived in SENT_ON.items():
        status, answer = await behind.ask(sent, BEARER_LINE)
        assert status == 200, (sent, answer)
        assert behind.heads[-1].split()[1] == arrived
    count = len(behind.heads)
    for sent in REFUSED_OPTIONS:
        status, answer = await behind.ask(sent, BEARER_LINE)
        assert status in (400, 404), (sent, answer)
        assert b"evil" not in answer
    assert len(behind.heads) == count, behind.heads[count:]


async def test_hop_by_hop_headers_pass_in_neither_direction(behind: Behind) -> None:
    between = ("Connection: X-Secret, Keep-Alive", "X-Secret: of this hop", "Keep-Alive: timeout=5", "TE: trailers",
               "Proxy-Connection: keep-alive", "Upgrade: h2c", "Trailer: X-Late", "Expect: 100-continue",
               "X-Second: of this hop", "Connection: X-Second")  # fmt: skip
    _, answer = await behind.ask(
        "/v1/embeddings", BEARER_LINE, *between, "X-Own: kept", method="POST", body=b'{"input": "x"}'
    )
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK"), answer
    assert "x-own: kept" in behind.last
    for name in (
        "x-secret",
        "x-second",
        "keep-alive: timeout",
        "te:",
        "proxy-connection",
        "upgrade",
        "trailer",
        "expect",
    ):
        assert f"\r\n{name}" not in behind.last, behind.last
    head = answer.decode().lower()
    assert "x-kept: yes" in head
    for name in ("x-between", "keep-alive", "proxy-authenticate", "upgrade", "trailer"):
        assert f"\r\n{name}" not in head, head


async def test_the_proxys_own_credentials_do_not_reach_the_server(behind: Behind) -> None:
    assert (await behind.ask("/v1/models", BEARER_LINE))[0] == 200
    assert TOKEN not in behind.heads[-1], "the server is not of this stack"
    program = ("Authorization: Bearer of-the-server", f"Proxy-Authorization: Bearer {TOKEN}")
    assert (await behind.ask("/v1/models", *program))[0] == 200
    assert TOKEN not in behind.heads[-1]
    assert "authorization: bearer of-the-server" in behind.last
    nominated = ("Connection: Authorization", BEARER_LINE)
    assert (await behind.ask("/v1/models", *nominated))[0] == 200
    assert "authorization" not in behind.last
    other_forms = (f"authorization: bearer {TOKEN}", f"Authorization: BEARER   {TOKEN} ")
    for line in other_forms:
        assert (await behind.ask("/v1/models", line))[0] == 200
    twice = (BEARER_LINE, "Authorization: Bearer of-the-server", f"X-Api-Key: {TOKEN}")
    await behind.ask("/v1/models", *twice)
    assert all(TOKEN not in head for head in behind.heads)


async def test_no_answer_and_no_request_repeats_the_name_that_the_caller_gave(behind: Behind) -> None:
    head = ["POST /rollbus/episodes HTTP/1.1", "Host: localhost:1", BEARER_LINE, "X-Forwarded-Host: evil.example",
            "Forwarded: host=evil.example;proto=https", "X-Forwarded-Proto: https", "Content-Type: application/json",
            "Content-Length: 13", "Connection: close", "", ""]  # fmt: skip
    status, answer = await ask(behind.proxy, "\r\n".join(head).encode() + b'{"task": "t"}')
    assert status == 201, answer
    assert f'"http://{HOST}:{behind.proxy}/rollbus/episodes/'.encode() in answer
    assert b"evil" not in answer
    await behind.ask("/v1/models", BEARER_LINE)
    assert f"host: {ELSEWHERE}:{behind.port}" in behind.last
