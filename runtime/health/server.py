"""`/metrics` for Prometheus and `/live` for a supervisor."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from rollbus.runtime.http.guard import Door, Receive, Scope, Send, names_of, token_admits
from rollbus.runtime.http.listener import open_listener
from rollbus.runtime.tasks import start_task

if TYPE_CHECKING:
    import uvicorn

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
STOP_S = 1
"""For answers that are under way when the server stops."""


class MetricsServer:
    """Answers two paths; `/live` also without the token."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        metrics: Callable[[], str],
        live: Callable[[], str | None],
        token: str | None = None,
    ) -> None:
        """`metrics` returns the text of `/metrics`; `live` what is wrong, or None if the process is well."""
        self._host, self._port = host, port
        self._metrics, self._live = metrics, live
        self._door = Door(token_admits(token, open_paths=("/live",)), 0, names_of(host))
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listen; return the port, which the system chooses for 0. Raises ConfigurationError if it cannot be opened."""
        from rollbus.runtime.http.server import make_server

        listener = open_listener(
            self._host,
            self._port,
            name="/metrics",
            host_setting="`health: metrics_host:`",
            port_setting="`health: metrics_ports:`",
        )
        server = make_server(self._answer, self._door, lifespan="off", timeout_graceful_shutdown=STOP_S)
        # the process handles its signals itself
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        self._server = server
        self._serving = start_task(server.serve(sockets=[listener]), "metrics server", endless=False)
        return int(listener.getsockname()[1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, text = self._respond(scope["path"])
        body = text.encode()
        headers = [(b"content-type", CONTENT_TYPE), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _respond(self, path: str) -> tuple[int, str]:
        if path == "/metrics":
            return 200, self._metrics()
        if path == "/live":
            problem = self._live()
            return (200, "live\n") if problem is None else (503, problem + "\n")
        return 404, "there are /metrics and /live\n"
