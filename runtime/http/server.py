"""An application behind its door, under uvicorn: one way for every server; a connection may not be silent for long."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rollbus.runtime.http.guard import App, Door, Guard, Message, Receive, Scope, Send
from rollbus.runtime.metrics import REQUEST_SECONDS

HEAD_S = 10.0
"""Within this time a connection must send a whole head, from its opening or from the end of its last answer on."""
HEAD_BYTES = 65_536
"""Limit on a head, as of uvicorn's own protocols."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HeadTimeoutProtocol(H11Protocol):
    """uvicorn's own protocol, which would wait for a head for ever, with a limit on this wait."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_for_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head_timer()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        """Let the time run while a head is awaited, and only then; a piece of it does not start it again."""
        if self.conn.their_state is not h11.IDLE:
            self._cancel_head_timer()
        elif self._head_timer is None:
            limit_s = max(HEAD_S, self.config.timeout_keep_alive)
            self._head_timer = self.loop.call_later(limit_s, self._close_silent)

    def _close_silent(self) -> None:
        self._head_timer = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


@dataclass(frozen=True, slots=True)
class TimedApp:
    """An application with the time of each answer measured, refusals too; its labels are method and status."""

    app: App

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began_s, status = time.perf_counter(), 500

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_note_status)
        finally:
            method = (
                scope["method"] if scope["method"] in METHODS else "other"
            )  # anyone can send any method, and each would be a series
            REQUEST_SECONDS.labels(method, str(status)).observe(time.perf_counter() - began_s)


def _stop_redirects(app: Any) -> None:
    """Let Starlette answer 404 to a path with a slash too many: it would send the caller to the name that it gave."""
    if (router := getattr(app, "router", None)) is not None:
        router.redirect_slashes = False
        for route in router.routes:
            _stop_redirects(getattr(route, "app", None))


class ServerOptions(TypedDict, total=False):
    """What a caller may choose of uvicorn, under its names."""

    h11_max_incomplete_event_size: int
    host: str
    lifespan: Literal["auto", "off", "on"]
    port: int
    timeout_graceful_shutdown: int
    timeout_keep_alive: int


def make_server(app: App, door: Door, **options: Unpack[ServerOptions]) -> uvicorn.Server:
    """Return a server of the application behind its door, which logs trouble only, by the process's own handlers.

    `options` are uvicorn's and win.
    """
    _stop_redirects(app)
    standard: dict[str, Any] = {
        "log_level": "warning",
        "log_config": None,
        "proxy_headers": False,
        "access_log": False,
        "ws": "none",
        "http": HeadTimeoutProtocol,
        "h11_max_incomplete_event_size": HEAD_BYTES,
    }
    return uvicorn.Server(uvicorn.Config(TimedApp(Guard(app, door)), **{**standard, **options}))
