"""`/metrics` for Prometheus and `/live` for a supervisor."""

from collections.abc import Callable

from aiohttp import web


class MetricsServer:
    """Answers two paths."""

    def __init__(self, host: str, port: int, *, metrics: Callable[[], str], live: Callable[[], str | None]) -> None:
        self._host, self._port = host, port
        self._metrics, self._live = metrics, live
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Listen; return the port."""
        app = web.Application()
        app.add_routes([web.get("/metrics", self._answer_metrics), web.get("/live", self._answer_live)])
        self._runner = runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, self._host, self._port).start()
        return int(runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer_metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self._metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _answer_live(self, request: web.Request) -> web.Response:
        problem = self._live()
        return web.Response(text=f"{problem or 'live'}\n", status=200 if problem is None else 503)
