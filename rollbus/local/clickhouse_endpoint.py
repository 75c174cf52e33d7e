"""ClickHouse's HTTP protocol over its engine in this process: `python -m rollbus.local.clickhouse_endpoint`.

clickhouse-connect's ordinary HTTP client, sync and async, works against it unchanged; production changes
the host.

    request ─clickhouse_request▶ Request ─clickhouse_engine▶ Answer ─▶ headers, body in the encoding the client accepts

What it does not serve says so with ClickHouse's own error code: external tables, native block framing,
several statements in one request, engines and functions that reach outside. Answers are built whole before
they are sent.
"""

import argparse
import asyncio
import base64
import binascii
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rollbus.local.clickhouse_compression import compress
from rollbus.local.clickhouse_errors import AUTHENTICATION_FAILED, ClickHouseError, from_engine, refusal
from rollbus.local.clickhouse_request import Request, parse_request
from rollbus.local.settings import HOST, StackSettings
from rollbus.schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbus.local.clickhouse_engine import Answer, Engine

THREADS = 16
"""Statements at a time; the engine runs outside Python's lock."""
KEEP_ALIVE_S = 30
"""As a server's keep_alive_timeout: longer than clients keep an idle connection between two statements."""
SHUTDOWN_S = 10
MAX_HEAD_BYTES = 1_114_112
"""As a server's http_max_uri_size (1 MiB) with room for headers: inserts carry their statement in the address."""
_LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "::1", None})
_CONTENT_TYPES = {
    "TabSeparated": "text/tab-separated-values; charset=UTF-8",
    "TSV": "text/tab-separated-values; charset=UTF-8",
    "CSV": "text/csv; charset=UTF-8; header=absent",
    "JSON": "application/json; charset=UTF-8",
    "JSONCompact": "application/json; charset=UTF-8",
    "JSONEachRow": "application/x-ndjson; charset=UTF-8",
}


def make_app(engine: "Engine") -> Starlette:
    """The web application over an open engine, which it closes when it ends."""
    threads = ThreadPoolExecutor(THREADS, thread_name_prefix="clickhouse")

    async def statement(http: HttpRequest) -> Response:
        try:
            _refuse_strangers(http)
            request = await _read(http)
            if request is None:
                return PlainTextResponse("Ok.\n")
            answer = await asyncio.get_running_loop().run_in_executor(threads, engine.run, request)
        except ClickHouseError as error:
            return _failure(error, engine)
        return _success(answer, request, http, engine)

    async def ping(_: HttpRequest) -> Response:
        try:
            await asyncio.get_running_loop().run_in_executor(threads, engine.ping)
        except ClickHouseError as error:
            return _failure(error, engine)
        return PlainTextResponse("Ok.\n")

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        threads.shutdown()
        engine.close()

    return Starlette(
        routes=[Route("/ping", ping, methods=["GET"]), Route("/", statement, methods=["GET", "POST"])],
        lifespan=lifespan,
    )


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; 2 if the data folder cannot be used."""
    defaults = StackSettings()
    parser = argparse.ArgumentParser(prog="python -m rollbus.local.clickhouse_endpoint", description=__doc__)
    parser.add_argument("--port", type=int, default=defaults.clickhouse_port)
    parser.add_argument("--data", type=Path, default=defaults.clickhouse_dir)
    options = parser.parse_args(arguments)
    # As in the official image: a DateTime must not depend on the machine. The engine reads it when it is imported.
    os.environ["TZ"] = "UTC"
    time.tzset()
    from rollbus.local.clickhouse_engine import Engine

    try:
        engine = Engine(options.data)
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    uvicorn.run(
        make_app(engine),
        host=HOST,
        port=options.port,
        log_level="warning",
        access_log=False,
        http="h11",
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    return 0


async def _read(http: HttpRequest) -> Request | None:
    """The request, or None for the bare GET with which people look whether somebody listens."""
    body = await http.body()
    if http.method != "POST" and not body and "query" not in http.query_params:
        return None
    try:
        return parse_request(
            method=http.method,
            parameters=http.query_params,
            headers=http.headers,
            body=body,
            login=_login(http.headers.get("authorization")),
        )
    except ClickHouseError:
        raise
    except (ValueError, UnicodeError) as error:
        raise from_engine(error) from error


def _success(answer: "Answer", request: Request, http: HttpRequest, engine: "Engine") -> Response:
    headers = {
        "X-ClickHouse-Summary": json.dumps(answer.summary, separators=(",", ":")),
        "X-ClickHouse-Query-Id": answer.query_id,
        "X-ClickHouse-Timezone": engine.timezone,
        "X-ClickHouse-Server-Display-Name": "rollbus",
    }
    if answer.format is not None:
        headers["X-ClickHouse-Format"] = answer.format
    body = answer.body
    if request.compressed_answer and body:
        body, encoding = compress(body, http.headers.get("accept-encoding"))
        if encoding is not None:
            headers["Content-Encoding"] = encoding
    content_type = _CONTENT_TYPES.get(answer.format or "TabSeparated", "application/octet-stream")
    return Response(body, headers=headers | {"Content-Type": content_type})


def _failure(error: ClickHouseError, engine: "Engine") -> Response:
    text = str(error)
    if "(version " not in text:
        text = f"{text} (version {engine.version})"
    headers = {
        "X-ClickHouse-Exception-Code": str(error.code),
        "X-ClickHouse-Timezone": engine.timezone,
        "X-ClickHouse-Server-Display-Name": "rollbus",
    }
    return PlainTextResponse(text + "\n", status_code=error.status, headers=headers)


def _login(authorization: str | None) -> tuple[str, str] | None:
    if authorization is None:
        return None
    scheme, _, credentials = authorization.partition(" ")
    try:
        if scheme.lower() != "basic":
            raise ValueError(scheme)
        user, _, password = base64.b64decode(credentials, validate=True).decode().partition(":")
    except (ValueError, binascii.Error) as error:
        raise refusal(AUTHENTICATION_FAILED, "Only Basic authentication is served") from error
    return user, password


def _refuse_strangers(http: HttpRequest) -> None:
    """A web page must not run SQL here through the browser of whoever is at this machine."""
    origin = http.headers.get("origin")
    if http.url.hostname not in _LOCAL_NAMES or (origin and urlsplit(origin).hostname not in _LOCAL_NAMES):
        raise refusal(AUTHENTICATION_FAILED, "Only pages and names of this machine are served")


if __name__ == "__main__":
    sys.exit(main())
