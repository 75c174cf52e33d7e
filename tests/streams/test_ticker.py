"""Stream time goes on whatever the wall clock does, and a configuration is applied once."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas.config import AssemblyConfig
from rollbus.schemas.control import ConfigApplied, Tick
from rollbus.schemas.errors import ConfigurationError
from rollbus.streams.settings import StreamSettings
from rollbus.streams.ticker import config_changes, next_tick
from rollbus.streams.ticker_kafka import Ticker


def run(clocks: list[int], interval_ms: int = 1_000) -> list[Tick]:
    ticks: list[Tick] = []
    for clock in clocks:
        last = ticks[-1] if ticks else None
        ticks.append(next_tick(last, wall_clock_ms=clock, interval_ms=interval_ms))
    return ticks


def test_with_a_steady_clock_stream_time_is_the_wall_clock() -> None:
    assert [tick.stream_time_ms for tick in run([5_000, 6_000, 7_010])] == [5_000, 6_000, 7_010]


def test_an_outage_is_caught_up_at_twice_the_speed() -> None:
    assert [tick.stream_time_ms for tick in run([0, 3_600_000, 3_601_000])] == [0, 2_000, 4_000]


def test_a_clock_that_was_set_back_slows_stream_time_and_never_stops_it() -> None:
    assert [tick.stream_time_ms for tick in run([10_000, 4_000, 5_000])] == [10_000, 10_500, 11_000]


@given(st.lists(st.integers(0, 10**12), min_size=2), st.integers(10, 10_000))
def test_any_clock_gives_numbers_without_gaps_and_time_at_half_to_twice_the_speed(
    clocks: list[int], interval_ms: int
) -> None:
    ticks = run(clocks, interval_ms)
    for before, after in itertools.pairwise(ticks):
        assert after.number == before.number + 1
        assert interval_ms // 2 <= after.stream_time_ms - before.stream_time_ms <= 2 * interval_ms


def applied(stage: str, *, run_id: str | None = None, config_hash: str = "h") -> ConfigApplied:
    return ConfigApplied(stage=stage, run_id=run_id, config_hash=config_hash, content="{}")


def test_only_what_differs_from_the_last_applied_hash_is_written() -> None:
    wanted = [applied("assembly"), applied("grouping", run_id="main"), applied("grouping", run_id="other")]
    changes = list(config_changes(wanted, {"assembly": "h", "grouping.main": "older"}))
    assert [change.place for change in changes] == ["grouping.main", "grouping.other"]
    assert {change.topic.name for change in changes} == {"scores"}


@pytest.mark.parametrize("stage", ["alias", "asembly"])
def test_a_stage_that_takes_no_configuration_is_refused_with_those_that_do(stage: str) -> None:
    with pytest.raises(ConfigurationError, match=r"takes no configuration.*assembly.*scoring"):
        list(config_changes([applied(stage)], {}))


def test_a_real_configuration_has_the_hash_that_records_name() -> None:
    assert AssemblyConfig().config_hash() == AssemblyConfig().config_hash()


async def test_a_tick_that_is_being_written_may_end_before_the_ticker_stops() -> None:
    ticker, written = Ticker(StreamSettings()), []

    async def tick() -> None:
        async with ticker._writing:
            await asyncio.sleep(0.05)
            written.append("tick")
        await asyncio.Event().wait()

    ticker._task = asyncio.create_task(tick())
    await asyncio.sleep(0.01)
    await ticker.stop()
    assert written == ["tick"]
