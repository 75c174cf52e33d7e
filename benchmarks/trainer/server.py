"""An art-server without ART: the control routes, the HTTP and the bytes are real, an update is a sleep.

python -m benchmarks.trainer.server SECONDS_OF_AN_UPDATE     prints its port once it answers
"""

import asyncio
import sys

from starlette.applications import Starlette

from rollbus.trainer.backends.art_server import control_routes
from rollbus.trainer.backends.memory import MemoryBackend
from rollbus.trainer.service.http_server import listen, quiet_server


async def serve(step_s: float) -> None:
    backend = MemoryBackend(step_s=step_s, max_sequence_tokens=100_000)
    app = Starlette(routes=control_routes(backend))  # type: ignore[arg-type]
    listener = listen("127.0.0.1", 0, "port")
    print(listener.getsockname()[1], flush=True)
    await quiet_server(app).serve(sockets=[listener])


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
