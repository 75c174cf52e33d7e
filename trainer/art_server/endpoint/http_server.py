"""An ASGI app under uvicorn: its port, its server, and a thread to run it in."""

import asyncio
import socket
import threading
import time
from typing import Any

import uvicorn

from rollbus.runtime.http.guard import Door
from rollbus.runtime.http.server import make_server
from rollbus.runtime.tasks import start_thread
from rollbus.schemas.errors import ConfigurationError, UnavailableError

START_TIMEOUT_S = 60.0


class EndpointServer:
    """Starts and stops an app; takes the port when it is made."""

    def __init__(self, app: Any, door: Door, *, host: str, port: int) -> None:
        self.host = host
        self._socket = listen(host, port, "model port")
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


def listen(host: str, port: int, name: str) -> socket.socket:
    """Listen on a port, by the name that its setting has; raise ConfigurationError if another process holds it.

    Who connects from now on waits for the server. A socket that is only bound would not hold the port: another process
    can bind it, too, and the one that listens first answers in the name of both.
    """
    # With the protocol named, asyncio turns Nagle's algorithm off; without it each answer waits 40 ms for an ack.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"port {port} on {host} cannot be used ({error.strerror}); choose another {name} or stop what holds it"
        ) from error
    return listener
