"""One service as a row of a table: how it is started, when it is healthy, where it listens; and its process.

`ServiceProcess` starts it, waits until it is healthy, and ends it with everything it started.
"""

import http.client
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollbus.local.process.ports import require_free
from rollbus.local.process.processes import (
    POLL_S,
    TERMINATE_GRACE_S,
    ProcessIdentity,
    ProcessorWait,
    end,
    exit_code,
    is_running,
    spawn,
)
from rollbus.schemas.errors import UnavailableError
from rollbus.stack_settings import HOST

START_TIMEOUT_S = 90.0
"""Kafka and ClickHouse take three seconds on an idle machine; this is enough for one that is busy with a build."""
ANSWER_S = 5.0
"""How long a service may take to answer before it counts as not healthy."""
LOG_LINES_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Service:
    """A process to run. The functions are called when needed, not when the table is made."""

    name: str
    command: Callable[[], Sequence[str]]
    """Prepares what the process needs on disk and returns its command line."""
    is_healthy: Callable[[], bool]
    """Asks the service for something real; False while it does not answer."""
    address: str = ""
    """Where people and clients find it, for messages; empty if it does not listen."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """Setting → port it listens on; each must be free before it starts."""
    start_timeout_s: float = START_TIMEOUT_S
    """Without the time in which it is ready to run and other processes have the processors."""
    is_ours: Callable[[], bool] = lambda: False
    """Whether what listens on its ports is this service, started by hand with the credentials of this stack."""
    may_end: bool = False
    """Whether it ends by itself when its work is done, as an agent does after its games."""
    env: Mapping[str, str] | None = None
    """Its whole environment; None for the starter's."""


class ServiceProcess:
    """A service that was started here: `start`, `wait_until_healthy`, `stop`, as often as wanted."""

    def __init__(
        self,
        service: Service,
        *,
        log_path: Path,
        identity: ProcessIdentity | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """`identity` if it already runs; `prefix` is a command that runs the service's command."""
        self.service = service
        self.log_path = log_path
        self.identity = identity
        self._prefix = prefix

    def start(self) -> ProcessIdentity:
        """Check its ports and start it; does not wait."""
        for setting, port in self.service.ports.items():
            require_free(port, service=self.service.name, setting=setting)
        command = [*self._prefix, *self.service.command()]
        _set_aside(self.log_path)
        self.identity = spawn(command, log_path=self.log_path, env=self.service.env)
        return self.identity

    def wait_until_healthy(self) -> None:
        """Return once it answers; raise UnavailableError with the end of its log if it died or is too slow."""
        began_s = time.monotonic()
        processor_wait = ProcessorWait(self.identity.pid) if self.identity is not None else None
        while not self.service.is_healthy():
            if self.identity is not None and not is_running(self.identity):
                how = f"{self.service.name} ended while starting, with exit code {self.exit_code()}"
                raise UnavailableError(f"{how}; {log_tail(self.log_path)}")
            waited_s = 0.0 if processor_wait is None else processor_wait.measure_s()
            if time.monotonic() - began_s - waited_s >= self.service.start_timeout_s:
                raise UnavailableError(
                    f"{self.service.name} did not become healthy within {self.service.start_timeout_s:.0f} s, and was "
                    f"ended; {log_tail(self.log_path)}"
                )
            time.sleep(POLL_S)

    def is_running(self) -> bool:
        """Whether the process still runs, healthy or not."""
        return self.identity is not None and is_running(self.identity)

    def exit_code(self) -> int | None:
        """How it ended, if it has: its exit code, or minus the signal; None while it runs and after `stop`."""
        return None if self.identity is None else exit_code(self.identity)

    def stop(self, *, grace_s: float = TERMINATE_GRACE_S) -> None:
        """SIGTERM, then SIGKILL after `grace_s`; nothing if it is not running."""
        if self.identity is not None:
            end(self.identity, grace_s=grace_s)
            self.identity = None


def answers_http(port: int, path: str, *, body: bytes | None = None, token: str | None = None) -> bool:
    """Whether a GET on loopback, with this token if one is given, is answered with 200, and with this body if so."""
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_S)
    try:
        connection.request("GET", path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status == 200 and body in (None, response.read())
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _set_aside(log_path: Path) -> None:
    """Keep one earlier log, so that the log describes this start alone and does not grow without end."""
    if log_path.exists():
        log_path.replace(log_path.with_name(log_path.name + ".previous"))


def log_tail(path: Path) -> str:
    """The end of a log file, for error messages."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:]
    except OSError:
        return f"it left no log in {path}"
    if not lines:
        return f"its log {path} is empty"
    return f"the end of {path}:\n" + "\n".join(f"  {line}" for line in lines)
