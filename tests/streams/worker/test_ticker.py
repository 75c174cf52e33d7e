"""Stream time goes on whatever the wall clock does, and a configuration is applied once."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas.codec import encode
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.control import ConfigApplied, Tick
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.state.ticker import config_changes, next_tick
from rollbus.streams.worker import ticker as ticker_kafka
from rollbus.streams.worker.ticker import Ticker
from rollbus.streams.worker.worker import Worker
from tests.builders import make_group, make_tick
from tests.waiting import until


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
    known = dict.fromkeys(("assembly", "assembly in aliases", "assembly in trajectories"), "h")
    changes = list(config_changes(wanted, {**known, "grouping.main": "older"}))
    assert [change.place for change in changes] == ["grouping.main", "grouping.other"]
    assert {change.topic.name for change in changes} == {"scores"}


def test_what_assembly_is_configured_to_goes_to_all_who_remember_as_long_as_it_does() -> None:
    changes = list(config_changes([applied("assembly")], {"assembly": "h"}))
    assert [change.topic.name for change in changes] == ["aliases", "trajectories"]
    assert [change.topic.name for change in config_changes([applied("assembly")], {})] == [
        "episode-events",
        "aliases",
        "trajectories",
    ]


@pytest.mark.parametrize("stage", ["alias", "asembly"])
def test_a_stage_that_takes_no_configuration_is_refused_with_those_that_do(stage: str) -> None:
    with pytest.raises(ConfigurationError, match=r"takes no configuration.*assembly.*scoring"):
        list(config_changes([applied(stage)], {}))


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


class Panic(BaseException):
    """What an extension in Rust raises when it panics is no Exception."""


@pytest.mark.parametrize("error", [ValueError("nobody thought of it"), asyncio.CancelledError(), Panic()])
async def test_an_error_that_nobody_thought_of_stops_no_clock(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broker:
        _txn_manager, _message_accumulator = None, SimpleNamespace(_batches={})

        def __getattr__(self, name: str) -> Any:
            return AsyncMock()

    async def no_rows(*place: Any, **_: Any) -> AsyncIterator[tuple[bytes, bytes]]:
        none: tuple[tuple[bytes, bytes], ...] = ()
        for row in none:
            yield row

    monkeypatch.setattr(ticker_kafka, "new_producer", lambda settings, name: Broker())
    monkeypatch.setattr(ticker_kafka, "read_from", no_rows)
    monkeypatch.setattr(ticker_kafka, "write_transaction", AsyncMock(side_effect=[error, None]))
    monkeypatch.setattr(ticker_kafka, "RETRY_S", 0.0)
    ticker = Ticker(StreamSettings())
    ticker.set_wanted(True)
    await until(lambda: ticker.last, "no tick comes", every_s=0)
    await ticker.stop()


async def test_a_ticker_without_its_changelog_goes_on_from_the_run_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that the stages know already moves no clock: nothing would close for as long as they have run."""
    logs = {
        "t.ticker.changelog": [],
        "t.run-log": [encode(make_tick(40)), encode(make_tick(41)), encode(make_group("g")), b"\xc3\x01poison", None],
    }

    async def read_from(_: Any, starts: Any, **options: Any) -> AsyncIterator[SimpleNamespace]:
        for place in starts:
            for value in logs[place.topic]:
                yield SimpleNamespace(key=None, value=value)

    monkeypatch.setattr(ticker_kafka, "read_from", read_from)
    ticker = Ticker(StreamSettings(namespace="t."))
    await ticker._restore()
    assert ticker.last == make_tick(41)


async def test_a_clock_that_stands_is_seen_by_the_watchdog_of_who_should_turn_it() -> None:
    worker = Worker(StreamSettings(), [])
    assert await worker._progress_of_parts() == []
    worker.ticker._wanted.set()
    worker.ticker.last = next_tick(None, wall_clock_ms=1, interval_ms=1_000)
    assert await worker._progress_of_parts() == [("ticker", 0, True)]
