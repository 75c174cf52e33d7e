"""`/metrics` for Prometheus and `/live` for a supervisor, over the smallest HTTP that both understand."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

REQUEST_S = 5.0
MAX_HEADER_LINES = 100


class MetricsServer:
    """Answers two paths."""

    def __init__(self, host: str, port: int, *, metrics: Callable[[], str], live: Callable[[], str | None]) -> None:
        self._host, self._port = host, port
        self._metrics, self._live = metrics, live
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen; return the port."""
        self._server = await asyncio.start_server(self._answer, self._host, self._port)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, ValueError):
            async with asyncio.timeout(REQUEST_S):
                words = (await reader.readline()).decode("latin-1").split()
                for _ in range(MAX_HEADER_LINES):
                    if not (await reader.readline()).strip():
                        break
                status, body = self._respond(words[1] if len(words) > 1 else "")
                head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                writer.write(f"{head}Content-Length: {len(body.encode())}\r\nConnection: close\r\n\r\n{body}".encode())
                await writer.drain()
        writer.close()

    def _respond(self, path: str) -> tuple[str, str]:
        if path == "/metrics":
            return "200 OK", self._metrics()
        if path == "/live":
            problem = self._live()
            return ("200 OK", "live\n") if problem is None else ("503 Service Unavailable", problem + "\n")
        return "404 Not Found", "there are /metrics and /live\n"
