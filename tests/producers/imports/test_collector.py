"""OTLP that trickles in, over a clock that the test moves: when a trace is whole, and what becomes of late spans."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rollbus.producers.imports import collector as collector_module
from rollbus.producers.imports.collector import REPORT_MS, TraceCollector
from rollbus.producers.imports.formats.formats import FORMATS
from rollbus.producers.imports.sending import Sender, TraceConverter
from rollbus.producers.imports.store import KEPT_MS, Store
from rollbus.producers.sending.sink import MemorySink
from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.records.events import EpisodeStarted, RewardReported, TurnRecorded
from tests.producers.imports.formats.reading import make_span, otlp_attributes, request_of
from tests.producers.imports.formats.test_otlp import AGENT, call

SETTLE_MS, QUIET_MS = 10_000, 900_000
LATE = call(8, [("user", "late")], "too late", parent=1)
EVALUATION = {"gen_ai.evaluation.name": "good", "gen_ai.evaluation.score.value": 1.0}


class World:
    """A collector, its clock and its sink; `restart` is a kill."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.now_ms, self.sink, self.path, self.options = 1_000_000_000, MemorySink(), folder / "s.sqlite", options
        self.collector = self._make()

    def _make(self) -> TraceCollector:
        converter = TraceConverter(format=FORMATS["otlp"])
        store = Store(self.path, **self.options)
        times = {"settle_ms": SETTLE_MS, "quiet_ms": QUIET_MS, "clock_ms": lambda: self.now_ms}
        return TraceCollector(store=store, converter=converter, **times)  # type: ignore[arg-type]

    def restart(self) -> None:
        self.collector.store.close()
        self.collector = self._make()

    def accept(self, *spans: dict[str, Any]) -> str:
        return self.collector.accept(request_of(spans))

    async def after(self, ms: int) -> list[str | None]:
        """Let time pass, and return the answers of the turns that were sent then."""
        self.now_ms += ms
        before = len(self.sink.sent)
        await self.collector.send_due(Sender(lambda: self.sink))
        return [
            record.completion.content for record in self.sink.records()[before:] if isinstance(record, TurnRecorded)
        ]

    @property
    def counts(self) -> dict[str, int]:
        return self.collector.counts()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_trace_is_sent_in_the_silence_after_its_root_ends(world: World) -> None:
    world.accept(*AGENT[1:4])
    assert await world.after(QUIET_MS - 1) == []
    world.accept(*AGENT[4:], AGENT[0])
    assert await world.after(SETTLE_MS - 1) == []
    world.accept(AGENT[1])  # comes again: not new
    assert await world.after(1) == ["a1", "b1", "b2", "a2"]
    assert await world.after(QUIET_MS) == []


async def test_a_trace_without_a_root_is_sent_after_a_long_silence(world: World) -> None:
    world.accept(*AGENT[1:])
    assert await world.after(QUIET_MS) == ["a1", "b1", "b2", "a2"]
    (started,) = (record for record in world.sink.records() if isinstance(record, EpisodeStarted))
    assert started.labels["partial"].startswith("3 spans")


async def test_a_late_span_is_counted_and_a_late_score_is_feedback(world: World) -> None:
    world.accept(*AGENT)
    await world.after(SETTLE_MS)
    world.accept(LATE)
    assert await world.after(QUIET_MS) == []
    assert world.counts["parts_late"] == 1
    log = {"traceId": "ab" * 16, "timeUnixNano": "1700000000000000000", "eventName": "gen_ai.evaluation.result",
           "attributes": otlp_attributes(EVALUATION)}  # fmt: skip
    world.collector.accept({"resourceLogs": [{"scopeLogs": [{"logRecords": [log]}]}]})
    await world.after(SETTLE_MS)
    (reward,) = (record for record in world.sink.records() if isinstance(record, RewardReported))
    (started,) = (record for record in world.sink.records() if isinstance(record, EpisodeStarted))
    assert (reward.episode_id, reward.value) == (started.episode_id, 1.0)


AGENTS, STRANGERS, RECORDERS = "rb.agent-7.fr.1", "rb.stranger.fr.1", "rb.recorder.r.1"


def evaluation(span_id: str = "") -> dict[str, Any]:
    log = {"traceId": AGENT[0]["traceId"], "timeUnixNano": "1700000000000000000",
           "eventName": "gen_ai.evaluation.result", "attributes": otlp_attributes(EVALUATION)}  # fmt: skip
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": [log | ({"spanId": span_id} if span_id else {})]}]}]}


def names_by_record(world: World) -> set[tuple[str, str]]:
    """Which kinds of records were sent in whose name."""
    sent = zip(world.sink.records(), world.sink.sent, strict=True)
    return {(type(record).__name__, outbound.principal) for record, outbound in sent}


async def test_spans_are_sent_under_the_principal_of_their_token(world: World) -> None:
    world.collector.accept(request_of(AGENT), AGENTS)
    world.restart()
    world.collector.accept(evaluation(), STRANGERS)
    await world.after(SETTLE_MS)
    kinds = ("EpisodeStarted", "TurnRecorded", "EpisodeEnded", "WriterClosed", "AliasDeclared")
    assert names_by_record(world) == {(kind, "agent-7") for kind in kinds} | {("RewardReported", "stranger")}


async def test_a_strangers_span_replaces_no_span_of_another_principal(world: World) -> None:
    (root, first, *others) = AGENT
    user = otlp_attributes({"user.id": "of-the-stranger"})
    strange = call(9, [("user", "strange")], "s", parent=1, at_s=2)
    strange["attributes"] += user
    world.collector.accept(request_of([strange]), STRANGERS)
    world.collector.accept(request_of([root, first]), AGENTS)
    world.collector.accept(request_of([{**first, "name": "forged"}, *others]), STRANGERS)
    await world.after(SETTLE_MS)
    assert world.counts["parts_of_others"] == 1
    turns = [
        (record.completion.content, outbound.principal)
        for record, outbound in zip(world.sink.records(), world.sink.sent, strict=True)
        if isinstance(record, TurnRecorded)
    ]
    assert turns == [("a1", "agent-7"), *((text, "stranger") for text in ("s", "b1", "b2", "a2"))]
    (started,) = (record for record in world.sink.records() if isinstance(record, EpisodeStarted))
    assert "user" not in started.labels


async def test_a_token_that_may_only_record_brings_no_reward(world: World) -> None:
    world.collector.accept(request_of(AGENT), RECORDERS)
    world.collector.accept(evaluation(), RECORDERS)
    await world.after(SETTLE_MS)
    assert world.counts["rewards_not_allowed"] == 1
    assert not [record for record in world.sink.records() if isinstance(record, RewardReported)]


async def test_acknowledged_spans_survive_a_kill(world: World) -> None:
    world.accept(*AGENT[:3])
    world.restart()
    world.accept(*AGENT[2:])
    world.restart()
    assert await world.after(SETTLE_MS) == ["a1", "b1", "b2", "a2"]
    world.restart()
    world.accept(*AGENT)
    assert await world.after(SETTLE_MS) == []
    assert world.counts["parts_repeated"] == 1 + len(AGENT)


async def test_a_broker_that_is_away_costs_nothing(world: World) -> None:
    world.accept(*AGENT)
    world.sink.available = False
    with pytest.raises(UnavailableError):
        await world.after(SETTLE_MS)
    world.sink.available = True
    assert len(await world.after(0)) == 4


async def test_a_broker_that_takes_the_counts_again_is_no_trouble(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was away while no trace waited, and none comes since."""
    monkeypatch.setattr(collector_module, "LOOK_S", 0.0)
    monkeypatch.setattr(collector_module, "RETRY_S", 0.0)
    world.accept(*AGENT)
    await world.after(SETTLE_MS)
    running = asyncio.create_task(world.collector.run(lambda: world.sink))
    try:
        while not world.collector._reported_ms:  # noqa: ASYNC110 - looks at a loop without events
            await asyncio.sleep(0)
        world.sink.available = False
        world.now_ms += REPORT_MS
        while world.collector.is_healthy is not False:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert world.collector.report().trouble == "the broker takes no events, and 0 traces wait"
        world.sink.available = True
        while world.collector._reported_ms < world.now_ms:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert world.collector.report().trouble is None
    finally:
        running.cancel()
        await asyncio.wait({running})


def fill(world: World) -> int:
    """Send traces until the store refuses one; return how many it took."""
    for number in range(1000):
        text = "".join(f"{number * 7919 + place:x}" for place in range(3000))
        try:
            world.accept({**call(1, [("user", text)], "a"), "traceId": f"{number + 1:032x}"})
        except UnavailableError:
            return number
    raise AssertionError("the store has no bound")


async def test_a_store_that_is_full_refuses_spans_and_keeps_the_others(tmp_path: Path) -> None:
    world = World(tmp_path, max_bytes=400_000)
    taken = fill(world)
    assert taken > 3
    assert len(await world.after(SETTLE_MS)) == taken
    world.accept({**call(1, [("user", "q")], "again"), "traceId": "cd" * 16})
    assert await world.after(SETTLE_MS) == ["again"]


async def test_traces_that_were_sent_are_forgotten_after_a_week(world: World) -> None:
    world.accept(*AGENT)
    await world.after(SETTLE_MS)
    world.collector.store.forget_sent(world.now_ms + 1)
    world.accept(make_span(1, name="agent"))
    assert await world.after(SETTLE_MS + KEPT_MS) == []
    assert world.counts["traces_sent"] == 2  # it was not known any more
