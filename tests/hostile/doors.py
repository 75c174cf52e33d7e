"""Every HTTP server of rollbus, started as its users start it, and raw requests to them."""

import asyncio
import base64
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rollbus.stack_settings import HOST
from tests.console import ROLLBUS

TOKEN = "only-for-this-test"
BEARER = {"authorization": f"Bearer {TOKEN}"}
JSON = {"content-type": "application/json"}
ANSWER_S = 120.0


@dataclass(frozen=True, slots=True)
class Place:
    """A server and a request that it answers with 200."""

    name: str
    port: int
    path: str
    credentials: Mapping[str, str]
    wrong: Mapping[str, str]
    """Credentials that are not right."""
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    most: int = 0
    """Bytes of the largest body."""
    checks_kind: bool = True
    refused: int = 401
    """Status without credentials."""
    compressed: int = 415
    """Status of a body that is said to be compressed with gzip, and is not."""

    def request(self, *without: str, body: bytes | None = None, **changes: str) -> bytes:
        """Return the request's bytes; `changes` are headers, their `_` written as `-`."""
        body = self.body if body is None else body
        named = {"host": f"{HOST}:{self.port}", "connection": "close", **self.headers, **self.credentials}
        if body:
            named["content-length"] = str(len(body))
        named |= {name.replace("_", "-"): value for name, value in changes.items()}
        lines = [f"{name}: {value}" for name, value in named.items() if name not in without]
        return "\r\n".join([f"{self.method} {self.path} HTTP/1.1", *lines, "", ""]).encode() + body


def basic(user: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


async def ask(
    port: int, *pieces: bytes, pause_s: float = 0.0, ends: bool = False, within_s: float = ANSWER_S
) -> tuple[int, bytes]:
    """Send pieces and return status and answer; 0 for a connection that was closed without an answer.

    With `ends` the client says that nothing follows, so that no server waits for the rest. TimeoutError after
    `within_s`.
    """
    reader, writer = await asyncio.open_connection(HOST, port)
    sending = asyncio.create_task(_send(writer, pieces, pause_s, ends))
    try:
        async with asyncio.timeout(within_s):
            with suppress(ConnectionError):
                answer = await reader.read()
                return _status_of(answer), answer
            return 0, b""
    finally:
        sending.cancel()
        with suppress(asyncio.CancelledError, ConnectionError):
            await sending
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _send(writer: asyncio.StreamWriter, pieces: tuple[bytes, ...], pause_s: float, ends: bool) -> None:
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(pause_s)
    if ends:
        writer.write_eof()


def _status_of(answer: bytes) -> int:
    status_match = re.match(rb"HTTP/1\.1 (\d{3})", answer)
    return int(status_match[1]) if status_match else 0


def peak_bytes(process_id: int) -> int:
    """Return the most memory that a process has had."""
    text = Path(f"/proc/{process_id}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) * 1024  # type: ignore[index]


@contextmanager
def command(folder: Path, *arguments: str, **variables: str) -> Iterator[str]:
    """Run a command of rollbus until the block ends; yield its first line."""
    environment = os.environ | {"ROLLBUS_ART_SERVER__TOKEN": TOKEN} | variables
    log = (folder / f"{arguments[0]}.log").open("w")
    process = subprocess.Popen(
        [ROLLBUS, *arguments], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline() if arguments[0] == "ui" else str(process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=120)
        process.stdout.close()  # type: ignore[union-attr]
        log.close()
