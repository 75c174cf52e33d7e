"""A session keeps its handle, serves one request at a time, and ends when it was idle too long."""

from dataclasses import dataclass, field

import pytest

from rollbus.local.clickhouse.errors import ClickHouseError
from rollbus.local.clickhouse.sessions import IDLE_S, EngineSessions


@dataclass
class Handle:
    number: int
    closed: list[int]

    def close(self) -> None:
        self.closed.append(self.number)


@dataclass
class Handles:
    """In place of the engine: handles have numbers."""

    opened: int = 0
    closed: list[int] = field(default_factory=list)
    now: float = 0.0

    def open(self) -> Handle:
        self.opened += 1
        return Handle(self.opened - 1, self.closed)

    def sessions(self) -> EngineSessions:
        return EngineSessions(self.open, clock_s=lambda: self.now)


def test_a_session_keeps_its_handle() -> None:
    handles = Handles()
    sessions = handles.sessions()
    handle_numbers = []
    for name in ("one", "one", "two"):
        with sessions.checkout(name) as session:
            handle_numbers.append(session.handle.number)
    assert handle_numbers == [0, 0, 1]
    sessions.close()
    assert handles.closed == [0, 1]


def test_a_second_request_at_the_same_time_is_refused() -> None:
    sessions = Handles().sessions()
    with sessions.checkout("s"):
        with pytest.raises(ClickHouseError) as refusal, sessions.checkout("s"):
            pass
        assert refusal.value.code == 373
    with sessions.checkout("s"):
        pass


def test_an_idle_session_ends_and_a_busy_one_does_not() -> None:
    handles = Handles()
    sessions = handles.sessions()
    with sessions.checkout("busy"):
        with sessions.checkout("idle"):
            pass
        handles.now = IDLE_S + 1
        with sessions.checkout("other"):
            pass
        assert handles.closed == [1]
    with sessions.checkout("busy") as session:
        assert session.handle.number == 0
