"""Stream time comes from ticks alone, and what is due is due in one order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.streams.state.clock import Clock
from rollbus.streams.state.deadlines import Deadlines
from rollbus.streams.state.stage_state import Applied
from tests.builders import START_MS, make_config, make_tick


def test_a_tick_seen_before_changes_nothing() -> None:
    clock = Clock()
    assert clock.observe(make_tick(5))
    assert not clock.observe(make_tick(5))
    assert not clock.observe(make_tick(4))
    assert clock.now_ms == START_MS + 5_000


def test_a_leaping_tick_number_holds_back_no_later_tick() -> None:
    clock = Clock()
    assert clock.observe(make_tick(2**53, stream_time_ms=START_MS))
    assert clock.observe(make_tick(1))
    assert clock.now_ms == START_MS + 1_000


def test_stream_time_never_goes_back() -> None:
    clock = Clock()
    clock.observe(make_tick(1, stream_time_ms=2_000))
    clock.observe(make_tick(2, stream_time_ms=1_000))
    assert clock.now_ms == 2_000


def test_records_before_the_first_tick_wait_from_that_tick() -> None:
    clock = Clock()
    assert clock.now_ms == 0
    clock.observe(make_tick(0))
    assert clock.since(0) == START_MS
    assert clock.since(START_MS + 7) == START_MS + 7


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 50)), max_size=40), st.integers(0, 60))
def test_due_keys_are_those_whose_last_deadline_has_passed(moves: list[tuple[str, int]], now: int) -> None:
    current: dict[str, int] = {}
    deadlines = Deadlines(current.get)
    for key, deadline in moves:
        current[key] = deadline
        deadlines.watch(key)
    expected = sorted((deadline, key) for key, deadline in current.items() if deadline <= now)
    assert deadlines.due(now) == [key for _, key in expected]
    assert deadlines.due(now) == []
    rest = sorted((deadline, key) for key, deadline in current.items() if deadline > now)
    assert deadlines.due(100) == [key for _, key in rest]


def test_a_configuration_is_taken_up_and_outlives_a_restart() -> None:
    applied, other = Applied(AssemblyConfig()), AssemblyConfig(inactivity_ms=7)
    applied.apply(make_config("assembly", other))
    assert (applied.value, applied.hash) == (other, other.config_hash())
    restored = Applied(AssemblyConfig())
    for key, data in applied.table.drain():
        restored.table.restore(key, data)
    assert restored.value == other


def test_an_invalid_configuration_changes_nothing() -> None:
    applied = Applied(AssemblyConfig())
    record = make_config("assembly", AssemblyConfig())
    with pytest.raises(InvalidRecordError, match="inactivity_ms"):
        applied.apply(type(record)(stage="assembly", config_hash="h", content='{"inactivity_ms": -1}'))
    assert applied.value == AssemblyConfig()
