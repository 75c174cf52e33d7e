"""HTTP sessions: a name → one handle of the engine that keeps SET, USE and temporary tables between requests.

As on a server, a session serves one request at a time (a second one is refused, not queued), and ends when it was idle
longer than its timeout.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rollbus.local.clickhouse_errors import SESSION_IS_LOCKED, SESSION_NOT_FOUND, refusal
from rollbus.local.clickhouse_request import READONLY_USER

MOST_OF_READER = 100
"""Sessions of the read-only user: nothing of theirs outlasts a request, so that the idlest may end for a new one."""


@dataclass(slots=True)
class Session:
    handle: Any
    timeout_s: float
    idle_since: float
    busy: bool = True
    altered: bool = False
    """Whether a statement such as SET may have changed its settings."""


class Sessions:
    """All sessions of one engine. Thread-safe."""

    def __init__(
        self,
        open_handle: Callable[[str], Any],
        close_handle: Callable[[Any], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_handle = open_handle
        self._close_handle = close_handle
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[tuple[str, str], Session] = {}

    @contextmanager
    def checkout(self, user: str, name: str, *, timeout_s: float, must_exist: bool = False) -> Iterator[Session]:
        """The session, with its handle, for this request alone."""
        session = self._acquire(user, name, timeout_s=timeout_s, must_exist=must_exist)
        try:
            yield session
        finally:
            with self._lock:
                session.busy = False
                session.idle_since = self._clock()

    def close(self) -> None:
        """End all sessions."""
        with self._lock:
            for session in self._sessions.values():
                self._close_handle(session.handle)
            self._sessions.clear()

    def _acquire(self, user: str, name: str, *, timeout_s: float, must_exist: bool) -> Session:
        with self._lock:
            self._expire()
            session = self._sessions.get((user, name))
            if session is None:
                if must_exist:
                    raise refusal(SESSION_NOT_FOUND, f"Session {name} not found")
                if user == READONLY_USER:
                    self._make_room(user)
                session = Session(self._open_handle(user), timeout_s, self._clock())
                self._sessions[user, name] = session
                return session
            if session.busy:
                raise refusal(SESSION_IS_LOCKED, f"Session {name} is locked by a concurrent client")
            session.busy = True
            session.timeout_s = timeout_s
            return session

    def _make_room(self, user: str) -> None:
        idle = [key for key, session in self._sessions.items() if key[0] == user and not session.busy]
        if len(idle) >= MOST_OF_READER:
            idlest = min(idle, key=lambda key: self._sessions[key].idle_since)
            self._close_handle(self._sessions.pop(idlest).handle)

    def _expire(self) -> None:
        now = self._clock()
        ended = [
            key
            for key, session in self._sessions.items()
            if not session.busy and now - session.idle_since > session.timeout_s
        ]
        for key in ended:
            self._close_handle(self._sessions.pop(key).handle)
