"""End a command that follows a topic or serves: SIGTERM or Ctrl-C asks it to stop."""

import asyncio
import signal
import socket
from contextlib import nullcontext
from typing import TYPE_CHECKING

from rollbus.runtime.tasks import start_task

if TYPE_CHECKING:
    import uvicorn


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set in the running loop."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def serve_until_stopped(server: "uvicorn.Server", listener: socket.socket) -> None:
    """Serve until a signal; uvicorn's own handling would end the process before its last heartbeat."""
    server.capture_signals = nullcontext  # type: ignore[method-assign,assignment]
    stopping = start_task(_stop_when(stop_on_signals(), server), "stopping", endless=False)
    await server.serve(sockets=[listener])
    stopping.cancel()


async def _stop_when(stop: asyncio.Event, server: "uvicorn.Server") -> None:
    await stop.wait()
    server.should_exit = True
