"""HTTP sessions: a name → one handle of the engine that keeps SET, USE and temporary tables between requests.

As on a server, a session serves one request at a time (a second one is refused, not queued), and ends once it has been
idle for a minute. A `session_timeout` of the request changes nothing.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rollbus.local.clickhouse.errors import Code, refusal

IDLE_S = 60.0
"""A server's `default_session_timeout`."""


@dataclass(slots=True)
class EngineSession:
    """One session and its handle of the engine."""

    handle: Any
    idle_since_s: float = 0.0
    """By the clock of `EngineSessions`, when its last request ended."""
    is_busy: bool = True
    is_altered: bool = False
    """Whether a statement such as SET may have changed its settings."""


class EngineSessions:
    """All sessions of one engine. Thread-safe."""

    def __init__(self, open_handle: Callable[[], Any], clock_s: Callable[[], float] = time.monotonic) -> None:
        self._open_handle = open_handle
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._sessions: dict[str, EngineSession] = {}

    @contextmanager
    def checkout(self, name: str) -> Iterator[EngineSession]:
        """Lend a session to one request, or a new one of that name; raises ClickHouseError where it is lent already."""
        with self._lock:
            self._end_idle()
            session = self._sessions.get(name)
            if session is None:
                session = self._sessions[name] = EngineSession(self._open_handle())
            elif session.is_busy:
                raise refusal(Code.SESSION_IS_LOCKED, f"Session {name} is locked by a concurrent client")
            session.is_busy = True
        try:
            yield session
        finally:
            with self._lock:
                session.is_busy, session.idle_since_s = False, self._clock_s()

    def close(self) -> None:
        """End all sessions."""
        with self._lock:
            for session in self._sessions.values():
                session.handle.close()
            self._sessions.clear()

    def _end_idle(self) -> None:
        now = self._clock_s()
        for name, session in list(self._sessions.items()):
            if not session.is_busy and now - session.idle_since_s > IDLE_S:
                self._sessions.pop(name).handle.close()
