"""An art-server without ART: the control routes, the HTTP and the bytes are real, an update is a sleep.

python -m benchmarks.trainer.server SECONDS_OF_AN_UPDATE     prints its port once it answers
"""

import asyncio
import sys

from starlette.applications import Starlette
from starlette.routing import Route

from rollbus.trainer.backends import wire
from rollbus.trainer.backends.art_server import _Control, _guarded
from rollbus.trainer.backends.memory import MemoryBackend
from rollbus.trainer.service.http_server import listen, quiet_server


class Waiting(MemoryBackend):
    """Lets the control routes wait for a job's end, as they do with ART."""

    async def wait_ended(self, batch_hash: str, timeout_s: float) -> None:
        job = self._jobs.get(batch_hash)
        if job is not None and job.task is not None:
            await asyncio.wait([job.task], timeout=timeout_s)


async def serve(step_s: float) -> None:
    control = _Control(Waiting(step_s=step_s, max_sequence_tokens=100_000))  # type: ignore[arg-type]
    guarded = [
        ("GET", wire.CAPABILITIES, control.capabilities),
        ("POST", wire.BATCHES, control.submit),
        ("GET", wire.BATCH, control.status),
        ("GET", wire.RESULT, control.result),
        ("GET", wire.VERSIONS, control.versions),
        ("POST", wire.SERVING, control.promote),
    ]
    app = Starlette(
        routes=[Route(path, _guarded(handler, None), methods=[method]) for method, path, handler in guarded]
    )
    listener = listen("127.0.0.1", 0, "port")
    print(listener.getsockname()[1], flush=True)
    await quiet_server(app).serve(sockets=[listener])


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
