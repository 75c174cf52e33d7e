"""An art-server without ART: the control routes, the HTTP and the bytes are real, an update is a sleep.

python -m benchmarks.trainer.server SECONDS_OF_AN_UPDATE     prints its port once it answers

What an update took in truth stands in its metrics: a sleep ends late, and the digest that is its result takes time.
"""

import asyncio
import sys
import time
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette

from rollbus.runtime.http.listener import open_listener
from rollbus.trainer.art_server.control.server import control_door, control_routes
from rollbus.trainer.art_server.endpoint.http_server import quiet_server
from rollbus.trainer.backends.memory import MemoryBackend
from rollbus.trainer.backends.protocol import TrainRequest, TrainResult

UPDATE_S = "update_seconds"


class TimedBackend(MemoryBackend):
    """Says of each update how long it took."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._took_s: dict[str, float] = {}

    async def _run(self, job: Any, request: TrainRequest) -> None:
        began_at_s = time.perf_counter()
        await super()._run(job, request)
        self._took_s[request.batch_hash] = time.perf_counter() - began_at_s

    async def journal(self, batch_hash: str) -> TrainResult | None:
        result = await super().journal(batch_hash)
        if result is None:
            return None
        return replace(result, metrics={**result.metrics, UPDATE_S: self._took_s[batch_hash]})


async def serve(step_s: float) -> None:
    backend = TimedBackend(step_s=step_s, max_sequence_tokens=100_000)
    app = Starlette(routes=control_routes(backend))  # type: ignore[arg-type]
    listener = open_listener("127.0.0.1", 0)
    print(listener.getsockname()[1], flush=True)
    await quiet_server(app, control_door(None)).serve(sockets=[listener])


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
