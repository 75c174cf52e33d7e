"""Services that end with the block that started them, as in the demo: Ctrl-C leaves nothing running.

    with Supervisor(log_dir=…) as supervisor:
        supervisor.start(kafka_service(…))
        supervisor.wait()
        …
        supervisor.check()   # raises if one of them has ended

SIGINT, SIGTERM and SIGHUP end the block, and the block ends every service, the last one first; kill -9 of this process
ends them too, through the kernel (`tether`). Use it in the main thread.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from rollbus.local.process.service import Service, ServiceProcess, log_tail
from rollbus.local.process.tether import tethered
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.terminal.progress import show_progress

logger = logging.getLogger(__name__)

STDERR = 2
STOP_GRACE_S = 10.0
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndedBySignal(SystemExit):
    """SIGTERM or SIGHUP; another SystemExit is of the code that runs."""


class Supervisor:
    """Starts services, notices when one ends, ends all of them."""

    def __init__(self, *, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._processes: dict[str, ServiceProcess] = {}
        self._handlers: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            raise ConfigurationError("a Supervisor needs the main thread: signals and tethers belong to it")
        # SIGINT already raises KeyboardInterrupt; the other two would end this process without cleaning up.
        self._handlers = {number: signal.signal(number, _exit) for number in ENDING_SIGNALS[1:]}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.stop_all()
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)  # type: ignore[arg-type]

    def start(self, service: Service) -> ServiceProcess:
        """Start a service; does not wait. A name can be used again once its service was stopped or has ended."""
        earlier = self._processes.get(service.name)
        if earlier is not None and earlier.is_running():
            raise ConfigurationError(f"service {service.name!r} is running already")
        log_path = self._log_dir / f"{service.name}.log"
        process = ServiceProcess(service, log_path=log_path, prefix=tethered())
        self._processes.pop(service.name, None)
        self._processes[service.name] = process
        process.start()
        return process

    def wait(self) -> None:
        """Return once every running service is healthy."""
        for process in self._processes.values():
            process.wait_until_healthy()

    def check(self) -> None:
        """Raise UnavailableError, with the end of its log, if a service has ended without `stop`.

        A service with `may_end` may end by itself with exit code 0.
        """
        for process in self._processes.values():
            if process.identity is None or process.is_running():
                continue
            code = process.exit_code()
            if code != 0 or not process.service.may_end:
                name = process.service.name
                raise UnavailableError(f"{name} has ended with exit code {code}; {log_tail(process.log_path)}")

    def has_ended(self, name: str) -> bool:
        """Whether a service that ends by itself, such as an agent with a number of games, has done so.

        Raises UnavailableError, with the end of its log, if it ended with an error.
        """
        process = self._processes[name]
        if process.is_running():
            return False
        code = process.exit_code()
        if code:
            raise UnavailableError(f"{name} ended with exit code {code}; {log_tail(process.log_path)}")
        return True

    def stop(self, name: str) -> None:
        """End one service and forget it."""
        self._processes.pop(name).stop(grace_s=STOP_GRACE_S)

    def stop_all(self) -> None:
        """End all services, the last one started first; a second Ctrl-C does not cut this short."""
        with _ignore_signals(), show_progress("ending what was started") as progress:
            while self._processes:
                name, process = self._processes.popitem()
                progress.begin(f"ending {name}")
                try:
                    process.stop(grace_s=STOP_GRACE_S)
                except Exception:
                    logger.exception("could not stop service=%s", name)


def _exit(number: int, frame: FrameType | None) -> None:
    """Raise SystemExit: at once, or in a running loop between two steps of its tasks.

    Within a step it would be raised in whatever runs, such as an agent whose errors of every kind are tried again.
    """
    # written past the buffer, in which the signal may have come; what the main thread waits for may take seconds
    os.write(STDERR, f"{signal.Signals(number).name}: ending\n".encode())
    ending = EndedBySignal(128 + number)
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise ending from None
    loop.call_soon_threadsafe(_raise, ending)


def _raise(ending: SystemExit) -> None:
    raise ending


@contextmanager
def _ignore_signals() -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
