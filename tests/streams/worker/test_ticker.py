"""Stream time goes on whatever the wall clock does, and a configuration is applied once."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.runtime.kafka.writing import Row
from rollbus.schemas.codec import decode, decode_if, encode
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.config import GroupingConfig, RewardConfig, RunConfig
from rollbus.schemas.records.control import ConfigApplied, RunCommand, Tick
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.pipeline import run_stages
from rollbus.streams.state.ticker import Pace, Pulse, config_changes, next_tick, removed_runs
from rollbus.streams.worker import ticker as ticker_kafka
from rollbus.streams.worker import ticker_log
from rollbus.streams.worker.ticker import Ticker
from rollbus.streams.worker.ticker_log import TickerLog
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
def test_any_clock_gives_gapless_ticks_at_half_to_twice_the_speed(clocks: list[int], interval_ms: int) -> None:
    ticks = run(clocks, interval_ms)
    for before, after in itertools.pairwise(ticks):
        assert after.number == before.number + 1
        assert interval_ms // 2 <= after.stream_time_ms - before.stream_time_ms <= 2 * interval_ms


def applied_config(stage: str, *, run_id: str | None = None, config_hash: str = "h") -> ConfigApplied:
    return ConfigApplied(stage=stage, run_id=run_id, config_hash=config_hash, content="{}")


def test_only_what_differs_from_the_last_applied_hash_is_written() -> None:
    wanted_records = [
        applied_config("assembly"),
        applied_config("grouping", run_id="main"),
        applied_config("grouping", run_id="other"),
    ]
    applied_hashes = dict.fromkeys(("assembly", "assembly in aliases", "assembly in trajectories"), "h")
    changes = list(config_changes(wanted_records, {**applied_hashes, "grouping.main": "older"}))
    assert [change.place for change in changes] == ["grouping.main", "grouping.other"]
    assert {change.topic.name for change in changes} == {"scores"}


def test_the_configuration_of_assembly_reaches_every_stage_that_remembers() -> None:
    changes = list(config_changes([applied_config("assembly")], {"assembly": "h"}))
    assert [change.topic.name for change in changes] == ["aliases", "trajectories"]
    assert [change.topic.name for change in config_changes([applied_config("assembly")], {})] == [
        "episode-events",
        "aliases",
        "trajectories",
    ]


@pytest.mark.parametrize("stage", ["alias", "asembly"])
def test_a_stage_that_takes_no_configuration_is_refused_with_those_that_do(stage: str) -> None:
    with pytest.raises(ConfigurationError, match=r"takes no configuration.*assembly.*scoring"):
        list(config_changes([applied_config(stage)], {}))


def test_a_run_without_a_configuration_is_removed_with_all_its_places() -> None:
    places = ["assembly", "grouping.main", "grouping.old", "curriculum.old", "delivery.old in scores"]
    removed = removed_runs([applied_config("assembly"), applied_config("grouping", run_id="main")], places)
    assert removed == {"old": ["grouping.old", "curriculum.old", "delivery.old in scores"]}


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
    """What an extension in Rust raises when it panics is not an Exception."""


@pytest.mark.parametrize("error", [ValueError("nobody thought of it"), asyncio.CancelledError(), Panic()])
async def test_an_unexpected_error_does_not_stop_the_clock(
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
    monkeypatch.setattr(ticker_log, "read_from", no_rows)
    monkeypatch.setattr(ticker_kafka, "write_transaction", AsyncMock(side_effect=[error, None]))
    monkeypatch.setattr(ticker_kafka, "RETRY_S", 0.0)
    ticker = Ticker(StreamSettings())
    ticker.set_active(True)
    await until(lambda: ticker.last, "no tick comes", every_s=0)
    await ticker.stop()


async def test_a_ticker_without_a_changelog_continues_from_the_newest_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A number that the stages know already moves no clock: nothing would close for as long as they have run."""
    logs: dict[str, list[bytes | None]] = {
        "t.ticker.changelog": [],
        "t.scores": [encode(make_tick(38)), encode(make_tick(39))],
        "t.run-log": [encode(make_tick(40)), encode(make_tick(41)), encode(make_group("g")), b"\xc3\x01poison", None],
    }

    async def read_from(_: Any, starts: Any, **options: Any) -> AsyncIterator[SimpleNamespace]:
        for place in starts:
            for value in logs.get(place.topic, ()):
                yield SimpleNamespace(key=None, value=value)

    monkeypatch.setattr(ticker_log, "read_from", read_from)
    ticker = Ticker(StreamSettings(namespace="t."))
    await ticker._restore()
    assert ticker.last == make_tick(41)


class Log:
    """What tickers write, one life after the other, each row as it would be read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[Row] = []
        monkeypatch.setattr(ticker_log, "read_from", self._read)
        monkeypatch.setattr(ticker_kafka, "write_transaction", self._write)

    async def _read(self, _: Any, starts: Any, **options: Any) -> AsyncIterator[Row]:
        for row in [row for row in self.rows if row.topic in {place.topic for place in starts}]:
            yield row

    async def _write(self, producer: Any, rows: Iterable[Row]) -> None:
        self.rows += rows

    def ticks(self, topic: str) -> list[int]:
        """The ticks of an input's first partition."""
        values = [row.value for row in self.rows if row.topic == f"t.{topic}" and row.partition == 0]
        return [tick.number for value in values if (tick := decode_if(value, Tick))]

    def kinds(self, topic: str) -> list[str]:
        """What an input's first partition holds."""
        rows = [row for row in self.rows if row.topic == f"t.{topic}" and row.partition == 0]
        return [type(decode(row.value or b"")).__name__ for row in rows]


async def ticker_on(settings: StreamSettings, *configs: ConfigApplied) -> Ticker:
    ticker = Ticker(settings, configs)
    await ticker._restore()
    return ticker


async def pulse(ticker: Ticker, count: int = 1) -> None:
    """Let so many intervals pass."""
    for _ in range(count):
        tick = next_tick(ticker.last, wall_clock_ms=1_000, interval_ms=1_000)
        await ticker._write(AsyncMock(), Pulse(tick, tuple(config_changes(ticker._configs, ticker._applied))))


def pass_all(ticker: Ticker, stage: str, tick: int) -> None:
    for partition in range(4):
        ticker.note(stage, partition, tick, is_busy=False)


SETTINGS = StreamSettings(namespace="t.")
CONFIGS = (applied_config("assembly"), applied_config("scoring"), applied_config("grouping", run_id="main"))


async def test_a_tick_goes_on_when_the_stages_before_have_passed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    ticker = await ticker_on(SETTINGS, *CONFIGS)
    await pulse(ticker, 3)
    assert (log.ticks("aliases"), log.ticks("episode-events")) == ([0, 1, 2], [])
    pass_all(ticker, "alias", 1)
    await ticker._write(AsyncMock(), None)
    assert (log.ticks("episode-events"), log.ticks("trajectories")) == ([0, 1], [])


async def test_a_tick_waits_for_the_next_one_to_go_on_until_there_is_work(monkeypatch: pytest.MonkeyPatch) -> None:
    Log(monkeypatch)
    ticker = await ticker_on(SETTINGS, *CONFIGS)
    ticker._pace = Pace(interval_s=600.0)
    ticker._pace.take_tick(now_s=time.monotonic())
    await pulse(ticker, 1)
    waiting = asyncio.create_task(ticker._wait_for_work())
    await asyncio.sleep(0)
    pass_all(ticker, "alias", 0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    ticker.note("alias", 0, 0, is_busy=True)
    await waiting


async def test_a_successor_writes_the_ticks_that_were_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    ticker = await ticker_on(SETTINGS, *CONFIGS)
    await pulse(ticker, 3)
    ticker = await ticker_on(SETTINGS, *CONFIGS)
    for stage in ("alias", "assembly", "scoring", "grouping.main"):
        pass_all(ticker, stage, 2)
    await ticker._write(AsyncMock(), None)
    topics = ("episode-events", "trajectories", "scores", "run-log")
    assert [log.ticks(topic) for topic in topics] == [[0, 1, 2]] * 4
    assert (await ticker_on(SETTINGS, *CONFIGS))._pulses == []


async def test_a_configuration_travels_in_front_of_its_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    ticker = await ticker_on(SETTINGS, *CONFIGS)
    await pulse(ticker, 2)
    ticker = await ticker_on(SETTINGS, *CONFIGS[:2], replace(CONFIGS[2], config_hash="other"))
    await pulse(ticker)
    for stage in ("alias", "assembly", "scoring"):
        pass_all(ticker, stage, 2)
    await ticker._write(AsyncMock(), None)
    assert log.kinds("scores") == ["ConfigApplied", "Tick", "Tick", "ConfigApplied", "Tick"]


async def test_the_passed_ticks_of_other_workers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    rows = TickerLog(SETTINGS)
    for process, partitions in (("one", (0, 1)), ("two", (2, 3))):
        log.rows.append(rows.report_row(process, {"alias": dict.fromkeys(partitions, 0)}))
    ticker = await ticker_on(SETTINGS, *CONFIGS)
    await pulse(ticker)
    assert log.ticks("episode-events") == [0]
    assert (await rows.read()).passed == {"merged": {"alias": dict.fromkeys(range(4), 0)}}


async def test_the_partition_that_holds_up_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    Log(monkeypatch)
    ticker = await ticker_on(SETTINGS, *CONFIGS)
    ticker._active.set()
    await pulse(ticker, 3)
    pass_all(ticker, "alias", 2)
    ticker.note("alias", 3, 2, is_busy=False)
    for partition in (0, 1, 3):
        ticker.note("assembly", partition, 1, is_busy=False)
    await ticker._write(AsyncMock(), None)
    assert ticker.longest_hold(now_s=time.monotonic()) is None
    longest = ticker.longest_hold(now_s=time.monotonic() + 60)
    assert longest is not None
    assert longest[0] == "time in trajectories for assembly[2] before its first tick"


def test_an_idle_namespace_ticks_less_often_until_the_first_record() -> None:
    pace = Pace(1.0)
    pace.begin(now_s=100.0, is_first=False)
    assert pace.due_s(now_s=100.0) == 101.0
    pace.take_tick(now_s=101.0)
    assert pace.due_s(now_s=104.0) == 106.0
    pace.note_work(now_s=104.0)
    assert pace.due_s(now_s=104.0) == 102.0


def test_the_first_tick_of_a_namespace_is_due_at_once() -> None:
    pace = Pace(1.0)
    pace.begin(now_s=100.0, is_first=True)
    assert pace.due_s(now_s=100.0) == 100.0


@pytest.mark.parametrize(("seconds", "interval_ms"), [(0.0, 1_000), (3.0, 3_000), (3_600.0, 5_000)])
def test_a_tick_states_the_length_of_the_last_tick_within_its_interval(seconds: float, interval_ms: int) -> None:
    pace = Pace(1.0)
    pace.begin(now_s=100.0, is_first=False)
    assert pace.take_tick(now_s=100.0 + seconds) == interval_ms


async def test_an_idle_worker_rarely_asks_the_broker() -> None:
    worker = Worker(StreamSettings(), [])
    waits_ms: list[int | None] = []
    worker.apps = [SimpleNamespace(set_patience=waits_ms.append, runners={})]  # type: ignore[list-item]
    worker._set_patience()
    worker._busy_at_s -= 60
    worker._set_patience()
    worker._set_patience()
    worker._note_tick("assembly", 0, 1, True)
    assert waits_ms == [6_000, None]


async def test_a_watchdog_sees_that_its_clock_does_not_advance() -> None:
    worker = Worker(StreamSettings(), [])
    assert await worker._progress_of_parts() == []
    worker.ticker._active.set()
    worker.ticker.last = next_tick(None, wall_clock_ms=1, interval_ms=1_000)
    assert await worker._progress_of_parts() == [("ticker", 0, True)]


async def test_a_run_that_leaves_the_settings_is_removed_once_and_can_return(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log(monkeypatch)
    both = (*CONFIGS, applied_config("grouping", run_id="old"))
    await pulse(await ticker_on(SETTINGS, *both))

    def removals() -> list[RunCommand]:
        commands = [decode_if(row.value, RunCommand) for row in log.rows if row.topic == "t.run-log"]
        return [command for command in commands if command is not None]

    for _ in range(2):  # in the second life it is known already
        await pulse(await ticker_on(SETTINGS, *CONFIGS))
        assert [(command.run_id, command.command) for command in removals()] == [("old", "removed")]
    changes = [change.place for change in config_changes(both, (await ticker_on(SETTINGS, *both))._applied)]
    assert changes == ["grouping.old"]


async def test_a_worker_without_configurations_removes_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch)
    await pulse(await ticker_on(SETTINGS, *CONFIGS))
    await pulse(await ticker_on(SETTINGS))
    assert "RunCommand" not in log.kinds("run-log")


async def test_a_stage_whose_input_gets_no_ticks_is_refused() -> None:
    stages = run_stages(RunConfig(grouping=GroupingConfig(rewards=(RewardConfig(type="judge_relative"),))))
    with pytest.raises(ConfigurationError, match=r"stage group-scoring\.main reads closed-groups, which gets no ticks"):
        Worker(StreamSettings(), stages)
