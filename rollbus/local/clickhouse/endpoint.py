"""ClickHouse's HTTP protocol over its engine in this process: `python -m rollbus.local.clickhouse.endpoint`.

clickhouse-connect's ordinary HTTP client, sync and async, works against it unchanged; production changes
the host.

    request ─request▶ EngineRequest ─engine▶ EngineAnswer ─▶ headers, body in its encoding

It answers with ClickHouse's own error code to what it does not serve: external tables, native block framing,
several statements in one request, engines and functions that reach outside. Answers over a megabyte are sent
while they are made, if their format allows it.

The passwords of the users `default` and `readonly` are in the folder that --secrets names. The process starts itself
again without its environment and gives up all files but its data and the installed code, and the network
(`confinement`).
"""

import argparse
import asyncio
import base64
import binascii
import json
import logging
import os
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Send

from rollbus.local.clickhouse.compression import BlockPacker, EncodingPacker, Packer, PlainPacker, choose_encoding
from rollbus.local.clickhouse.confinement import confine, shed_environment
from rollbus.local.clickhouse.errors import ClickHouseError, Code, refusal
from rollbus.local.clickhouse.reader_role import READONLY_USER
from rollbus.local.clickhouse.request import (
    OWNER_BYTES,
    READONLY_BYTES,
    READONLY_SEND_S,
    EngineRequest,
    find_credentials,
    parse_request,
)
from rollbus.runtime.credentials import PASSWORD, READONLY_PASSWORD, read_secret
from rollbus.runtime.http.guard import Door, ErrorAnswer, RefusedError, RequestHead
from rollbus.runtime.http.listener import open_listener
from rollbus.runtime.http.server import make_server
from rollbus.schemas.errors import ConfigurationError
from rollbus.stack_settings import HOST, StackSettings
from rollbus.terminal.log_lines import LINE_FORMAT, LogFormatter

if TYPE_CHECKING:
    from rollbus.local.clickhouse.answers import EngineAnswer
    from rollbus.local.clickhouse.engine import Engine
    from rollbus.local.clickhouse.stream import RemainingPieces

THREADS = 16
"""Statements at a time; the engine runs outside Python's lock."""
KEEP_ALIVE_S = 30
"""As a server's keep_alive_timeout: longer than clients keep an idle connection between two statements."""
SHUTDOWN_S = 10
MAX_HEAD_BYTES = 1_114_112
"""As a server's http_max_uri_size (1 MiB) with room for headers: inserts carry their statement in the address."""
SLICE_BYTES = 1_048_576
"""Sent of an answer at a time: no more of it waits for a reader that has stopped."""
REFUSALS = {413: Code.TOO_MANY_BYTES, 408: Code.TIMEOUT_EXCEEDED, 503: Code.TOO_MANY_SIMULTANEOUS_QUERIES}
"""Status of a refusal → the protocol's code."""
_CONTENT_TYPES = {
    "TabSeparated": "text/tab-separated-values; charset=UTF-8",
    "TSV": "text/tab-separated-values; charset=UTF-8",
    "CSV": "text/csv; charset=UTF-8; header=absent",
    "JSON": "application/json; charset=UTF-8",
    "JSONCompact": "application/json; charset=UTF-8",
    "JSONEachRow": "application/x-ndjson; charset=UTF-8",
}


def make_app(engine: "Engine", *, send_s: float = READONLY_SEND_S) -> Starlette:
    """The web application over an open engine, which it closes when it ends.

    `send_s` is how long the read-only user may take over a long answer.
    """
    threads = ThreadPoolExecutor(THREADS, thread_name_prefix="clickhouse")

    async def statement(http: HttpRequest) -> Response:
        try:
            request = await _read_request(http)
            if request is None:
                return PlainTextResponse("Ok.\n")
            answer = await asyncio.get_running_loop().run_in_executor(threads, engine.run, request)
        except ClickHouseError as error:
            return _make_failure(error, engine)
        limit_s = send_s if request.user == READONLY_USER else None
        return _make_success(answer, request, http, engine, threads, limit_s)

    async def ping(_: HttpRequest) -> Response:
        try:
            await asyncio.get_running_loop().run_in_executor(threads, engine.ping)
        except ClickHouseError as error:
            return _make_failure(error, engine)
        return PlainTextResponse("Ok.\n")

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        threads.submit(engine.close).result()
        threads.shutdown()

    return Starlette(
        routes=[Route("/ping", ping, methods=["GET"]), Route("/", statement, methods=["GET", "POST"])],
        lifespan=lifespan,
    )


def statement_door(engine: "Engine") -> Door:
    """What the endpoint asks of a request: a user's password, before the body is read."""

    def admit(head: RequestHead) -> int | None:
        if head.path != "/" or (head.method == "GET" and "query" not in head.query and not head.has_body):
            return 0
        try:
            login = _read_login(head.headers.get("authorization"))
            user, password = find_credentials(head.query, head.headers, login)
            engine.authenticate(user, password)
        except ClickHouseError as error:
            raise RefusedError(error.status, str(error), {"X-ClickHouse-Exception-Code": str(error.code)}) from error
        return READONLY_BYTES if user == READONLY_USER else None

    def describe(refused: RefusedError, head: RequestHead) -> ErrorAnswer:
        """Write the error as the protocol's clients read it."""
        code = REFUSALS.get(refused.status, Code.AUTHENTICATION_FAILED)
        text = refused.message if refused.message.startswith("Code: ") else str(refusal(code, refused.message))
        headers = {"content-type": "text/plain; charset=UTF-8", "X-ClickHouse-Exception-Code": str(int(code))}
        return headers, f"{text} (version {engine.version})\n".encode()

    return Door(admit, OWNER_BYTES, media_types=None, describe=describe)


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; 2 if the data folder cannot be used."""
    defaults = StackSettings()
    parser = argparse.ArgumentParser(prog="python -m rollbus.local.clickhouse.endpoint", description=__doc__)
    parser.add_argument("--port", type=int, default=defaults.clickhouse_port)
    parser.add_argument("--data", type=Path, default=defaults.clickhouse_dir)
    parser.add_argument(
        "--send-s",
        type=float,
        default=READONLY_SEND_S,
        help=f"seconds in which the user {READONLY_USER} must have taken a long answer",
    )
    parser.add_argument("--secrets", type=Path, help="read the users' passwords from this folder")
    parser.add_argument("--insecure", action="store_true", help="serve without passwords")
    options = parser.parse_args(arguments)
    # As in the official image: a DateTime must not depend on the machine. The engine reads it when it is imported.
    os.environ["TZ"] = "UTC"
    time.tzset()
    data = options.data.resolve()
    data.mkdir(parents=True, exist_ok=True)
    try:
        passwords = {} if options.insecure else _read_passwords(options.secrets)
        listener = open_listener(HOST, options.port, port_setting="`stack: clickhouse_port:`")
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    to_stderr = logging.StreamHandler()
    to_stderr.setFormatter(LogFormatter(LINE_FORMAT))
    logging.basicConfig(level=logging.WARNING, handlers=[to_stderr])
    for missing in confine(data):
        print(f"this process keeps rights that it does not need, as the kernel lacks {missing}", file=sys.stderr)
    try:
        with ThreadPoolExecutor(1) as opening:
            engine = opening.submit(_open_engine, data, passwords).result()
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    make_server(
        make_app(engine, send_s=options.send_s),
        statement_door(engine),
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
    ).run(sockets=[listener])
    return 0


def _open_engine(data: Path, passwords: Mapping[str, str]) -> "Engine":
    """Import and open it, in another thread than the first: of that one it would ask /proc how large its stack is."""
    from rollbus.local.clickhouse.engine import Engine

    return Engine(data, passwords)


def _read_passwords(folder: Path | None) -> dict[str, str]:
    names = {"default": PASSWORD, READONLY_USER: READONLY_PASSWORD}
    passwords = {user: folder and read_secret(folder, name) for user, name in names.items()}
    if missing := [names[user] for user, password in passwords.items() if not password]:
        raise ConfigurationError(
            f"ClickHouse's users need passwords, and {', '.join(missing)} is missing in {folder or '--secrets'}; "
            "`rollbus up` makes them. --insecure serves everybody on this machine"
        )
    return {user: str(password) for user, password in passwords.items()}


async def _read_request(http: HttpRequest) -> EngineRequest | None:
    """Return the request, or None for the bare GET that only asks whether the server is there."""
    has_body = not {"content-length", "transfer-encoding"}.isdisjoint(http.headers.keys())
    if http.method != "POST" and not has_body and "query" not in http.query_params:
        return None
    try:
        return parse_request(
            method=http.method,
            parameters=http.query_params,
            headers=http.headers,
            body=await http.body(),
            login=_read_login(http.headers.get("authorization")),
        )
    except ValueError as error:  # a UnicodeError, too
        raise refusal(Code.BAD_ARGUMENTS, f"The request cannot be read: {error}") from error


def _make_success(
    answer: "EngineAnswer",
    request: EngineRequest,
    http: HttpRequest,
    engine: "Engine",
    threads: Executor,
    limit_s: float | None,
) -> Response:
    headers = {
        "X-ClickHouse-Summary": json.dumps(answer.summary, separators=(",", ":")),
        "X-ClickHouse-Query-Id": answer.query_id.encode().decode("latin-1"),  # its bytes as they came
        "X-ClickHouse-Timezone": engine.timezone,
        "X-ClickHouse-Server-Display-Name": "rollbus",
    }
    if answer.format is not None:
        headers["X-ClickHouse-Format"] = answer.format
    headers["Content-Type"] = _CONTENT_TYPES.get(answer.format or "TabSeparated", "application/octet-stream")
    packer: Packer = BlockPacker() if request.answers_in_blocks else PlainPacker()
    encoding = choose_encoding(http.headers.get("accept-encoding")) if request.encodes_answer else None
    if encoding is not None and answer.body and not request.answers_in_blocks:
        packer = EncodingPacker(encoding)
        headers["Content-Encoding"] = encoding
    if answer.rest is not None:
        return LongResponse(_pack_pieces(answer.body, answer.rest, packer, threads), limit_s=limit_s, headers=headers)
    return Response(packer.pack(answer.body) + packer.end(), headers=headers)


class LongResponse(StreamingResponse):
    """A response that breaks off if its statement fails, so that the client does not take a part for the whole.

    It also breaks off if its reader has not read it within `limit_s`, and releases what the statement holds.
    """

    def __init__(
        self, pieces: AsyncGenerator[bytes], *, limit_s: float | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(pieces, headers=headers)
        self._pieces = pieces
        self._limit_s = limit_s

    async def stream_response(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        end = None if self._limit_s is None else loop.time() + self._limit_s
        async with aclosing(self._pieces):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                async for piece in self._pieces:
                    for start in range(0, len(piece), SLICE_BYTES):
                        body = piece[start : start + SLICE_BYTES]
                        # Only the sending is timed: a running statement ends by its own limits.
                        async with asyncio.timeout_at(end):
                            await send({"type": "http.response.body", "body": body, "more_body": True})
            except (ClickHouseError, TimeoutError):
                return  # without an end, the server closes the connection
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _pack_pieces(
    first: bytes, rest: "RemainingPieces", packer: Packer, threads: Executor
) -> AsyncGenerator[bytes]:
    """Yield the body piece by piece; the text of a failure ends it, as on a server."""
    loop = asyncio.get_running_loop()
    try:
        piece: bytes | None = first
        while piece is not None:
            yield await loop.run_in_executor(threads, packer.pack, piece)
            try:
                piece = await loop.run_in_executor(threads, rest.next)
            except ClickHouseError as error:
                yield packer.pack(f"\n{error}\n".encode())
                raise
        yield packer.end()
    finally:
        threads.submit(rest.close)


def _make_failure(error: ClickHouseError, engine: "Engine") -> Response:
    text = str(error)
    if "(version " not in text:
        text = f"{text} (version {engine.version})"
    headers = {
        "X-ClickHouse-Exception-Code": str(error.code),
        "X-ClickHouse-Timezone": engine.timezone,
        "X-ClickHouse-Server-Display-Name": "rollbus",
    }
    return PlainTextResponse(text + "\n", status_code=error.status, headers=headers)


def _read_login(authorization: str | None) -> tuple[str, str] | None:
    if authorization is None:
        return None
    scheme, _, credentials = authorization.partition(" ")
    try:
        if scheme.lower() != "basic":
            raise ValueError(scheme)
        user, _, password = base64.b64decode(credentials, validate=True).decode().partition(":")
    except (ValueError, binascii.Error) as error:
        raise refusal(Code.AUTHENTICATION_FAILED, "Only Basic authentication is served") from error
    return user, password


if __name__ == "__main__":
    shed_environment()
    sys.exit(main())
