"""Delivery while everything around it breaks: the host sees nothing, memory stays bounded, and the counts add up."""

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbus.producers import MemorySink, Outbound, Recorder, init
from rollbus.producers.capture import answer_tap, call, chat_stream, endpoints, hidden_fields
from rollbus.producers.capture.chat import ChatSurface
from rollbus.producers.episode import context, episode, feedback, late_turns, open_episodes, outbox
from rollbus.producers.sending import books, queue
from rollbus.producers.turns import turn_record
from rollbus.producers.turns.answer import AnswerChoice, ServerAnswer
from rollbus.producers.turns.turn_record import Exchange
from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.records.events import TurnRecorded
from tests.examples import count_examples
from tests.producers.openai_server import Server
from tests.producers.sending.test_faults import HELLO, assert_adds_up
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="rollbus")


class StuckSink(MemorySink):
    """Takes a batch and never says that it has it."""

    async def send(self, records: Sequence[Outbound]) -> frozenset[int]:
        await asyncio.Event().wait()
        return frozenset()


class BlockingSink(MemorySink):
    """Blocks the loop it runs in, as no sink should, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.blocks = threading.Event(), threading.Event()

    async def send(self, records: Sequence[Outbound]) -> frozenset[int]:
        self.blocks.set()
        self.go.wait(120)
        return await super().send(records)


class Tokens:
    """What a turn is made from; stands for a response object that must not be kept for long."""


def exchange_of(entries: Sequence[Any]) -> Exchange:
    answer = ServerAnswer(model="agent", choices=(AnswerChoice(content="x", entries=tuple(entries)),))
    return Exchange(request={"messages": HELLO}, answer=answer)


def record_turns(recorder: Recorder, count: int) -> list[weakref.ref[Tokens]]:
    """Record episodes of four turns; return what tells whether their answers are still in memory."""
    token_references = []
    for _ in range(count // 4):
        with recorder.episode(task="t") as episode:
            for _ in range(4):
                tokens = Tokens()
                token_references.append(weakref.ref(tokens))
                episode.record(exchange_of([tokens]), "")
    return token_references


def alive(answers: Sequence[weakref.ref[Tokens]]) -> int:
    gc.collect()
    return sum(answer() is not None for answer in answers)


def end_stuck(folder: Path, **options: Any) -> tuple[Recorder, str]:
    """Record two batches that nobody takes, and close; return the recorder and the episode's id."""
    recorder = init(sink=StuckSink(), spool_folder=folder, **options)
    with recorder.episode(task="t") as episode:
        for number in range(2 * books.MAX_BATCH_EVENTS):
            episode.tool(f"tool-{number}")
    assert not recorder.close(0.2)
    return recorder, episode.id


def test_unsent_events_of_a_process_are_sent_by_the_next_one(tmp_path: Path) -> None:
    recorder, episode_id = end_stuck(tmp_path)
    assert recorder.counters["events_spooled"] == recorder.counters["events_emitted"]
    assert recorder.counts.total("events_dropped") == 0
    assert_adds_up(recorder)

    sink = MemorySink()
    following = init(sink=sink, spool_folder=tmp_path)
    following.start(task="next")
    wait_until(lambda: following.counters.get("records_drained", 0) > 2 * books.MAX_BATCH_EVENTS, "much stays on disk")
    assert following.close(120)
    first = [event for event in sink.records("episode-events") if event.episode_id == episode_id]
    assert [event.sequence for event in first] == list(range(2 * books.MAX_BATCH_EVENTS + 3))


def test_a_spool_too_small_for_what_is_left_keeps_a_part_and_counts_the_rest(tmp_path: Path) -> None:
    recorder, _ = end_stuck(tmp_path, spool_bytes=250_000)
    assert recorder.counters["events_spooled"] > 0
    assert recorder.counters["events_dropped.undelivered_at_close"] > 0
    assert recorder.counters["events_queued"] == 0
    assert_adds_up(recorder)


@pytest.mark.parametrize("mood", ["away", "broken"])
def test_a_sink_that_never_works_keeps_no_more_bytes_than_allowed(mood: str) -> None:
    recorder = init(sink=MoodySink(repeat(mood)), max_queue_events=400, max_queue_bytes=200_000)
    answers = record_turns(recorder, 4000)
    wait_until(lambda: not recorder._delivery._unmade, "turns are not made into records")
    assert recorder._delivery.pending_bytes <= 200_000 + books.RESERVE_BYTES
    assert recorder._delivery.pending_events <= 400 + books.RESERVE_EVENTS
    assert alive(answers) == 0, "the queue holds answers that were made into records"
    assert_adds_up(recorder)
    assert not recorder.close(0.1)
    assert recorder.counters["events_queued"] == 0
    assert_adds_up(recorder)


def test_a_sink_that_blocks_the_loop_leaves_memory_bounded_too() -> None:
    sink = BlockingSink()
    recorder = init(sink=sink, max_queue_events=400)
    recorder.start(task="first")
    wait_until(lambda: recorder._delivery._in_flight, "nothing is sent")
    answers = record_turns(recorder, 4000)
    assert alive(answers) <= 400, "dropped episodes left their answers behind"
    assert len(recorder._delivery._unmade) <= 800
    assert len(recorder._delivery._queue) <= 2 * (400 + books.RESERVE_EVENTS)
    sink.go.set()
    assert recorder.close(120)
    assert_adds_up(recorder)


def test_a_turn_that_could_not_be_made_at_all_is_counted(sink: MemorySink, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = init(sink=sink)
    with recorder.episode(task="t") as episode, monkeypatch.context() as patch:
        patch.setattr(recorder.outbox, "_frames", _raise)
        episode.record(exchange_of([]), "")
        assert recorder.flush(120)
    assert recorder.close(120)
    assert recorder.counters["hook_errors.record"] == 1
    assert recorder.counters["events_dropped.not_made"] == 1
    assert_adds_up(recorder)


class ChattySink(MemorySink):
    """As busy as a process under load: whatever it takes, something new has been recorded meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] = lambda: None

    async def send(self, records: Sequence[Outbound]) -> frozenset[int]:
        self.meanwhile()
        return await super().send(records)


def test_a_flush_waits_only_for_events_recorded_before_it() -> None:
    sink = ChattySink()
    recorder = init(sink=sink)
    episode = recorder.start(task="t")
    sink.meanwhile = lambda: episode.tool("meanwhile")
    episode.tool("before")
    assert recorder.flush(120)
    assert any(getattr(event, "name", "") == "before" for event in sink.records())
    sink.meanwhile = lambda: None
    assert recorder.close(120)
    assert_adds_up(recorder)


class MoodySink(MemorySink):
    """Does with each call what its script says next."""

    def __init__(self, moods: Iterator[str]) -> None:
        super().__init__()
        self.moods = moods

    async def send(self, records: Sequence[Outbound]) -> frozenset[int]:
        mood = next(self.moods, "take")
        if mood == "away":
            raise UnavailableError("away")
        if mood == "broken":
            raise ZeroDivisionError("broken")
        if mood == "slow":
            await asyncio.sleep(0.01)
        if mood == "refuse":
            return frozenset(range(0, len(records), 2))
        return await super().send(records)


def test_a_sink_that_raises_is_asked_again() -> None:
    sink = MoodySink(iter(["broken", "broken"]))
    recorder = init(sink=sink)
    record_turns(recorder, 4)
    assert recorder.close(120)
    assert sum(isinstance(event, TurnRecorded) for event in sink.records("episode-events")) == 4
    assert recorder.counters["delivery_retries"] == 2
    assert_adds_up(recorder)


STEPS = st.lists(st.sampled_from(("episode", "turn", "tool", "large", "drop", "feedback", "flush")), max_size=40)
MOODS = st.lists(st.sampled_from(("take", "away", "broken", "slow", "refuse")), max_size=6)


@settings(max_examples=count_examples(40), deadline=None)
@given(steps=STEPS, moods=MOODS, room=st.integers(1, 30), spooled=st.booleans())
def test_every_event_is_accounted_for_with_any_sink(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], moods: list[str], room: int, spooled: bool
) -> None:
    sink = MoodySink(iter(moods))
    folder = tmp_path_factory.mktemp("spool") if spooled else None
    recorder = init(sink=sink, max_queue_events=room, max_queue_bytes=20_000, spool_folder=folder)
    current = recorder.start(task="t")
    for step in steps:
        if step == "episode":
            current.end()
            current = recorder.start(task="t")
        elif step == "turn":
            current.record(exchange_of([]), "")
        elif step == "tool":
            current.tool("x")
        elif step == "large":
            current.tool("x", result="y" * 15_000)
        elif step == "drop":
            recorder.outbox.purge(current.id, "queue_full")
        elif step == "feedback":
            recorder.feedback(current, reward=1.0)
        else:
            recorder.flush(0.01)
    recorder.close(0.05)
    assert recorder.counters["events_queued"] == 0
    assert recorder._delivery.pending_bytes == 0
    assert_adds_up(recorder)
    assert not [name for name in recorder.counters if name.startswith("hook_errors")]


def _raise(*arguments: Any, **keywords: Any) -> Any:
    raise RuntimeError("injected")


HOOKS: dict[Any, tuple[str, ...]] = {
    call.RecordedCall: ("__init__", "_record", "body", "cut"),
    ChatSurface: ("is_recorded", "read_wishes", "add_wishes", "convert_request", "read_response", "make_reader"),
    chat_stream.ChunkReader: ("answer",),
    answer_tap.AnswerTap: ("__init__", "_finish"),
    hidden_fields: ("_without_ids",),
    endpoints: ("find_surface",),
    episode.Episode: ("record", "begin", "_end", "_tool", "_reward"),
    episode: ("expected_bytes",),
    open_episodes.OpenEpisodes: ("open",),
    feedback: ("report_reward",),
    outbox.Outbox: ("envelope", "submit", "submit_late", "_frames", "_report_item"),
    queue.Delivery: ("offer", "_start_courier"),
    late_turns.LateTurns: ("encode", "_make_turn"),
    late_turns: ("drafts_of",),
    turn_record: ("judge",),
    context: ("mark_captured",),
}


@pytest.mark.parametrize(
    ("owner", "name"),
    [pytest.param(owner, name, id=f"{owner.__name__}.{name}") for owner, names in HOOKS.items() for name in names],
)
def test_an_exception_in_any_hook_stays_inside(
    server: Server, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    monkeypatch.setattr(owner, name, _raise)
    recorder = init(sink=MemorySink())
    client = recorder.wrap(server.client())
    with recorder.episode(task="t") as own_episode:
        answer = client.chat.completions.create(model="agent", messages=HELLO)
        assert answer.choices[0].message.content == "Hello there"
        stream = client.chat.completions.create(model="agent", messages=HELLO, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == "Hello there"
        own_episode.tool("look")
        own_episode.reward(1.0)
    recorder.feedback(own_episode, reward=1.0, key="k")
    has_courier = name != "_start_courier"
    recorder.close(120 if has_courier else 0.1)
    assert recorder.counts.total("hook_errors") > 0 or not has_courier  # which the next event tries again
