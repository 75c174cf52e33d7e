"""An ASGI app under uvicorn: its port, its server, and a thread to run it in."""

import asyncio
import threading
import time
from typing import Any

import uvicorn

from rollbus.runtime.http.guard import Door
from rollbus.runtime.http.listener import open_listener
from rollbus.runtime.http.server import make_server
from rollbus.runtime.tasks import start_thread
from rollbus.schemas.errors import UnavailableError

START_TIMEOUT_S = 60.0


class EndpointServer:
    """Starts and stops an app; takes the port when it is made."""

    def __init__(self, app: Any, door: Door, *, host: str, port: int) -> None:
        self.host = host
        self._socket = open_listener(
            host, port, name="the model", host_setting="`art_server: host:`", port_setting="`stack: model_port:`"
        )
        self.port: int = self._socket.getsockname()[1]
        self._server = quiet_server(app, door)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        thread = self._thread = start_thread(self._serve, "endpoint", is_over=lambda: self._server.should_exit)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._server.started:
            if not thread.is_alive() or time.monotonic() > deadline:
                raise UnavailableError(f"the model endpoint did not start on {self.host}:{self.port}")
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))


def quiet_server(app: Any, door: Door) -> uvicorn.Server:
    """Return a server that, when it is to end, lets answers under way end first."""
    return make_server(app, door, lifespan="off", timeout_graceful_shutdown=5)
