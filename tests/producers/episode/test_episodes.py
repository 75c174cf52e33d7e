"""Episodes, their context, rewards, aliases and what crosses threads and processes."""

import asyncio
import threading
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from rollbus.producers import MemorySink, Recorder, init
from rollbus.producers.episode.episode import Episode
from rollbus.producers.sending.guard import MOST_FAILURES
from rollbus.schemas import ids
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.events import (
    AliasDeclared,
    EpisodeEnded,
    EpisodeStarted,
    Excluded,
    RewardReported,
    ToolCalled,
    WriterClosed,
)


def events(recorder: Recorder, sink: MemorySink) -> list[Any]:
    """What has arrived, except the producer's reports."""
    assert recorder.flush(120)
    return sink.records("episode-events")


def test_an_episode_is_started_ended_and_counted(recorder: Recorder, sink: MemorySink) -> None:
    with recorder.episode(task="t", example_id="7", group_id="g", group_size=8, labels={"user": "u1"}) as episode:
        episode.tool("search", arguments={"q": "x"}, result=["a"], tool_call_id="c1")
        episode.reward(0.5, name="speed")
    start, tool, reward, ended, closed = events(recorder, sink)
    assert isinstance(start, EpisodeStarted)
    assert (start.task, start.example_id, start.group_id, start.group_size) == ("t", "7", "g", 8)
    assert start.labels == {"user": "u1"}
    assert (tool.name, tool.arguments, tool.result) == ("search", '{"q":"x"}', '["a"]')
    assert (reward.name, reward.value) == ("speed", 0.5)
    assert isinstance(ended, EpisodeEnded)
    assert ended.writer_ids == (recorder.writer_id,)
    assert isinstance(closed, WriterClosed)
    assert closed.count == closed.sequence == 4
    for sequence, event in enumerate((start, tool, reward, ended, closed)):
        assert event.sequence == sequence
        assert event.event_id == ids.event_id(episode.id, recorder.writer_id, sequence)
        assert (event.producer, event.environment) == ("test-agent", "test")


@pytest.mark.parametrize(("error", "reason"), [(TimeoutError("slow"), "timeout"), (KeyError("k"), "error")])
def test_an_exception_ends_the_episode_and_goes_on(
    recorder: Recorder, sink: MemorySink, error: Exception, reason: str
) -> None:
    with pytest.raises(type(error)), recorder.episode(task="t"):
        raise error
    ended = events(recorder, sink)[1]
    assert (ended.stop_reason, ended.error) == (reason, f"{type(error).__name__}: {error}")


async def test_decorators_make_an_episode_of_each_call(recorder: Recorder, sink: MemorySink) -> None:
    @recorder.episode(task="sum")
    def add(leave_early: int, right: int) -> int:
        recorder.tool("plus")
        return leave_early + right

    @recorder.episode
    async def think() -> str:
        await asyncio.sleep(0)
        recorder.tool("ponder")
        return "done"

    assert add(1, right=2) == 3
    assert add(2, 3) == 5
    assert [await think(), await think()] == ["done", "done"]
    starts = [event for event in events(recorder, sink) if isinstance(event, EpisodeStarted)]
    assert sorted(event.task for event in starts) == ["sum", "sum", "think", "think"]
    assert len({event.episode_id for event in starts}) == 4


async def test_a_decorated_generator_is_an_episode_until_it_is_read(recorder: Recorder, sink: MemorySink) -> None:
    @recorder.episode
    def stream(name: str) -> Iterator[str]:
        recorder.tool(f"{name} begins")
        heard = yield "one"
        recorder.tool(f"{name} hears {heard}")
        yield "two"

    @recorder.episode(task="later")
    async def stream_async() -> AsyncIterator[str]:
        recorder.tool("first")
        yield "one"
        await asyncio.sleep(0)
        recorder.tool("second")
        yield "two"

    with recorder.episode(task="of the reader") as reader:
        generator = cast(Generator[str, str, None], stream("a"))
        assert next(generator) == "one"
        assert recorder.current_episode() is reader, "the generator's episode is current only while it runs"
        assert generator.send("b") == "two"
        assert list(generator) == []
    texts = []
    async for text in stream_async():
        assert recorder.current_episode() is None
        texts.append(text)
    assert texts == ["one", "two"]

    all_events = events(recorder, sink)
    start_by_task = {event.task: event for event in all_events if isinstance(event, EpisodeStarted)}
    assert start_by_task["stream"].parent_episode_id == reader.id
    tools = [(event.episode_id, event.name) for event in all_events if isinstance(event, ToolCalled)]
    assert tools == [
        (start_by_task["stream"].episode_id, "a begins"),
        (start_by_task["stream"].episode_id, "a hears b"),
        (start_by_task["later"].episode_id, "first"),
        (start_by_task["later"].episode_id, "second"),
    ]
    for name in ("stream", "later"):
        event_names = [
            type(event).__name__ for event in all_events if event.episode_id == start_by_task[name].episode_id
        ]
        assert event_names == ["EpisodeStarted", "ToolCalled", "ToolCalled", "EpisodeEnded", "WriterClosed"]


async def test_a_decorated_generator_that_is_left_or_fails_ends_its_episode(
    recorder: Recorder, sink: MemorySink
) -> None:
    cleaned = []

    @recorder.episode(task="left")
    def leave_early() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            cleaned.append(recorder.current_episode())

    @recorder.episode(task="left later")
    async def left_async() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            cleaned.append(recorder.current_episode())

    @recorder.episode(task="failing")
    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    @recorder.episode(task="told to fail")
    async def handling() -> AsyncIterator[int]:
        try:
            yield 1
        except KeyError:
            yield 2

    for number in (generator := cast(Generator[int, None, None], leave_early())):
        assert number == 1
        break
    generator.close()
    asynchronous = cast(AsyncGenerator[int, None], left_async())
    assert await anext(asynchronous) == 1
    await asynchronous.aclose()
    with pytest.raises(ValueError, match="broken"):
        list(failing())
    handled = cast(AsyncGenerator[int, None], handling())
    assert await anext(handled) == 1
    assert await handled.athrow(KeyError("k")) == 2
    with pytest.raises(StopAsyncIteration):
        await anext(handled)

    all_events = events(recorder, sink)
    task_of = {event.episode_id: event.task for event in all_events if isinstance(event, EpisodeStarted)}
    assert [task_of[episode.id] for episode in cleaned if episode is not None] == ["left", "left later"]
    assert {
        task_of[event.episode_id]: event.stop_reason for event in all_events if isinstance(event, EpisodeEnded)
    } == {
        "left": "completed",
        "left later": "completed",
        "failing": "error",
        "told to fail": "completed",
    }


def test_bind_carries_the_episode_of_a_coroutine_into_another_loop(recorder: Recorder, sink: MemorySink) -> None:
    async def work(name: str) -> str:
        await asyncio.sleep(0)
        recorder.tool(name)
        return name

    with recorder.episode(task="t") as episode, ThreadPoolExecutor(1) as executor:
        bound = recorder.bind(work)
        assert executor.submit(lambda: asyncio.run(bound("bound"))).result() == "bound"
    (tool,) = [event for event in events(recorder, sink) if isinstance(event, ToolCalled)]
    assert (tool.episode_id, tool.name) == (episode.id, "bound")


def test_a_nested_episode_is_a_child_on_its_roots_partition(recorder: Recorder, sink: MemorySink) -> None:
    with recorder.episode(task="plan") as root, recorder.episode(task="step") as child:
        with recorder.episode(task="detail") as grandchild:
            pass
        recorder.feedback(grandchild.id, reward=1.0, key="k")
    start_by_episode = {
        event.episode_id: event for event in events(recorder, sink) if isinstance(event, EpisodeStarted)
    }
    assert start_by_episode[child.id].parent_episode_id == root.id
    assert start_by_episode[grandchild.id].parent_episode_id == child.id
    assert {event.root_episode_id for event in start_by_episode.values()} == {root.id}
    assert {record.key for record in sink.sent} == {root.id.encode()}


def test_a_sub_agents_episode_has_its_roots_labels_and_its_own(recorder: Recorder, sink: MemorySink) -> None:
    with (
        recorder.episode(task="plan", labels={"user": "ann", "plan": "free"}),
        recorder.episode(task="step", labels={"plan": "paid"}),
        recorder.episode(task="detail"),
    ):
        pass
    labels = {event.task: event.labels for event in events(recorder, sink) if isinstance(event, EpisodeStarted)}
    assert labels["step"] == labels["detail"] == {"user": "ann", "plan": "paid"}
    assert labels["plan"] == {"user": "ann", "plan": "free"}


def test_a_slash_in_an_own_id_makes_no_family(recorder: Recorder, sink: MemorySink) -> None:
    with recorder.episode(task="plan", episode_id="tenant/order-7") as root, recorder.episode(task="step") as child:
        recorder.feedback(episode=child.id, reward=1.0, key="k")
    with recorder.episode(task="plan", episode_id="tenant/order-8"):
        pass
    recorder.feedback(episode="tenant/order-8", reward=1.0, key="k")
    root_by_episode = {event.episode_id: event.root_episode_id for event in events(recorder, sink)}
    assert root_by_episode == {root.id: root.id, child.id: root.id, "tenant/order-8": "tenant/order-8"}
    assert {record.key for record in sink.sent} == {b"tenant/order-7", b"tenant/order-8"}


def test_a_uuid_after_a_slash_in_an_own_id_makes_no_family(recorder: Recorder, sink: MemorySink) -> None:
    own_ids = [f"tenant/{uuid.UUID(int=number)}" for number in range(2)]
    for own_id in own_ids:
        with recorder.episode(task="plan", episode_id=own_id):
            recorder.feedback(episode=own_id, reward=1.0, key="k")
    assert {event.episode_id: event.root_episode_id for event in events(recorder, sink)} == {
        own_id: own_id for own_id in own_ids
    }


def test_an_episode_may_have_a_number_as_its_own_id(recorder: Recorder, sink: MemorySink) -> None:
    number: Any = 4711
    with recorder.episode(task="plan", episode_id=number) as episode:
        pass
    assert (episode.id, {event.episode_id for event in events(recorder, sink)}) == ("4711", {"4711"})


def test_an_empty_id_is_none(recorder: Recorder, sink: MemorySink) -> None:
    for _ in range(2):
        with recorder.episode(task="plan", episode_id="", conversation=""):
            pass
    starts = [event for event in events(recorder, sink) if isinstance(event, EpisodeStarted)]
    assert len({start.episode_id for start in starts} - {""}) == 2
    assert [start.labels for start in starts] == [{}, {}]


def test_the_host_is_safe_from_an_id_that_cannot_be_written(recorder: Recorder, sink: MemorySink) -> None:
    class Unreadable:
        def __str__(self) -> str:
            raise ValueError("no text")

    unreadable: Any = Unreadable()
    with recorder.episode(task="plan", episode_id=unreadable) as episode:
        assert episode.id
    assert events(recorder, sink) == []
    assert recorder.counters["hook_errors.start"] == 1


@pytest.mark.parametrize("taken", ["pause:order 7", "conversation:17"])
def test_an_alias_cannot_be_the_name_of_a_pause_or_a_conversation(
    recorder: Recorder, sink: MemorySink, taken: str, caplog: pytest.LogCaptureFixture
) -> None:
    with recorder.episode(task="plan") as episode:
        recorder.alias(episode, taken)
    assert recorder.flush(60)
    assert not list(sink.records("aliases"))
    assert "begin it with another word" in caplog.text


def test_an_episode_cannot_have_the_name_of_a_pause(recorder: Recorder, sink: MemorySink) -> None:
    with recorder.episode(task="plan", episode_id="pause:order 7"):
        pass
    assert recorder.flush(60)
    assert sink.sent == []
    assert recorder.counters["hook_errors.start"] == 1


def test_a_child_with_an_own_id_is_named_once(recorder: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    with recorder.episode(task="plan", episode_id="order-7"):
        for number in range(2):
            with recorder.episode(task="step", episode_id=f"step-{number}"):
                pass
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("rollbus: episode step-0 has an id of its own inside order-7")


def test_a_second_use_of_an_id_is_named_once_and_counted(recorder: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    for episode_id in ("order-7", "order-8", "order-7", "order-8"):
        with recorder.episode(task="plan", episode_id=episode_id):
            pass
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("rollbus: episode_id order-7 was given to an earlier episode, too")
    assert recorder.counters["episode_ids_used_again"] == 2


def test_bind_carries_the_episode_into_threads(recorder: Recorder, sink: MemorySink) -> None:
    def call(number: int) -> None:
        recorder.tool(f"bound-{number}")

    with recorder.episode(task="t") as episode, ThreadPoolExecutor(4) as pool:
        list(pool.map(recorder.bind(call), range(20)))
        thread = threading.Thread(target=lambda: recorder.tool("unbound"))
        thread.start()
        thread.join()
    tools = [event for event in events(recorder, sink) if isinstance(event, ToolCalled)]
    assert {event.name for event in tools} == {f"bound-{number}" for number in range(20)}
    assert {event.episode_id for event in tools} == {episode.id}
    assert sorted(event.sequence for event in tools) == list(range(1, 21))
    assert recorder.counters["calls_outside_episode"] == 1


def test_feedback_under_a_key_is_the_same_event_again(recorder: Recorder, sink: MemorySink) -> None:
    with recorder.episode(task="t") as episode:
        pass
    elsewhere = init(sink=sink, namespace="t.")
    first_event_id = recorder.feedback(episode.id, reward=1.0, key="thumbs")
    again_event_id = elsewhere.feedback(episode.id, reward=1.0, key="thumbs")
    fresh_event_id = elsewhere.feedback(episode, reward=0.0)
    assert first_event_id == again_event_id == ids.reward_event_id(episode.id, "reward", "thumbs")
    assert fresh_event_id not in (None, first_event_id)
    elsewhere.feedback(episode.id, retracted=True, supersedes=first_event_id)
    assert elsewhere.close(120)
    rewards = [event for event in events(recorder, sink) if isinstance(event, RewardReported)]
    assert [event.sequence for event in rewards] == [-1] * 4
    assert [event.supersedes for event in rewards if event.retracted] == [first_event_id]


def test_a_reward_after_the_end_is_feedback(recorder: Recorder, sink: MemorySink) -> None:
    with recorder.episode(task="t") as episode:
        pass
    assert episode.reward(1.0) is not None
    assert episode.tool("too late") is None
    last = events(recorder, sink)[-1]
    assert (last.value, last.sequence) == (1.0, -1)


def test_feedback_by_alias_waits_for_no_episode(recorder: Recorder, sink: MemorySink) -> None:
    recorder.feedback("order-123", reward=0.25, key="refund")
    with recorder.episode(task="t") as episode:
        recorder.alias(episode, "order-123")
    recorder.feedback(alias="order-123", reward=0.5)
    assert recorder.flush(120)
    first, declared, second = sink.records("aliases")
    assert (first.alias, first.episode_id, first.value) == ("order-123", "", 0.25)
    assert isinstance(declared, AliasDeclared)
    assert (declared.alias, declared.episode_id) == ("order-123", episode.id)
    assert second.value == 0.5
    assert {record.key for record in sink.sent if record.topic == "t.aliases"} == {b"order-123"}


def test_feedback_without_a_target_is_about_the_current_episode(
    recorder: Recorder, sink: MemorySink, caplog: pytest.LogCaptureFixture
) -> None:
    with recorder.episode(task="t") as episode:
        recorder.feedback(reward=1.0, key="k")
    assert recorder.feedback(reward=1.0) is None
    recorder.flush(120)
    (reward,) = [event for event in sink.records("episode-events") if isinstance(event, RewardReported)]
    assert (reward.episode_id, reward.value) == (episode.id, 1.0)
    assert recorder.counters["hook_errors.feedback"] == 1
    assert "feedback names no episode, and none is open here" in caplog.text


@pytest.mark.parametrize("own_id", ["run-17", "0af7651916cd43dd8448eb211c80319c"])
def test_an_own_id_names_an_episode_only_as_the_episode_argument(
    recorder: Recorder, sink: MemorySink, own_id: str
) -> None:
    recorder.feedback(episode=own_id, reward=1.0)
    recorder.feedback(own_id, reward=0.5)  # in another process it is an alias like any other text
    recorder.feedback(alias=str(uuid.UUID(int=7)), reward=0.25)
    recorder.flush(120)
    (by_id,) = sink.records("episode-events")
    assert (by_id.episode_id, by_id.alias) == (own_id, None)
    assert [(event.alias, event.value) for event in sink.records("aliases")] == [
        (own_id, 0.5),
        (str(uuid.UUID(int=7)), 0.25),
    ]


@pytest.mark.parametrize("second", ["episode", "alias", "conversation"])
@pytest.mark.parametrize("target", [str(uuid.UUID(int=7)), "order-7"])
def test_feedback_that_names_two_episodes_is_refused_in_words(
    recorder: Recorder, sink: MemorySink, caplog: pytest.LogCaptureFixture, target: str, second: str
) -> None:
    fields: dict[str, Any] = {second: "order-8"}
    assert recorder.feedback(target, reward=1.0, **fields) is None
    assert recorder.flush(120)
    assert sink.sent == []
    assert recorder.counters["hook_errors.feedback"] == 1
    assert f"feedback is about one episode, and this call has target and {second}: give one of them" in caplog.text


@pytest.mark.parametrize("name", ["episode_id", "example_id", "group_id", "conversation"])
def test_an_empty_id_of_an_episode_is_none(recorder: Recorder, sink: MemorySink, name: str) -> None:
    fields: dict[str, Any] = {name: ""}
    with recorder.episode(task="t", **fields) as episode:
        pass
    start, *_ = events(recorder, sink)
    assert start.episode_id == episode.id != ""
    assert (start.example_id, start.group_id, start.labels) == (None, None, {})
    assert sink.records("aliases") == []


@pytest.mark.parametrize("value", [7, uuid.UUID(int=7)])
def test_an_episode_takes_ids_and_names_of_other_types_as_text(
    recorder: Recorder, sink: MemorySink, value: Any
) -> None:
    with recorder.episode(
        task=value, agent=value, episode_id=value, example_id=value, group_id=value, conversation=value
    ) as episode:
        episode.reward(1.0)
    start, *_ = events(recorder, sink)
    texts = (start.task, start.agent, start.episode_id, start.example_id, start.group_id, start.labels["conversation"])
    assert texts == (str(value),) * 6


def test_an_id_that_cannot_be_text_raises_nothing_into_the_program(recorder: Recorder, sink: MemorySink) -> None:
    class Unreadable:
        def __str__(self) -> str:
            raise ValueError("no text")

    unreadable: Any = Unreadable()
    with recorder.episode(task="t", episode_id=unreadable):
        pass
    assert recorder.flush(120)
    assert sink.sent == []
    assert recorder.counters["hook_errors.start"] == 1


def test_names_and_ids_of_other_types_are_taken_as_text(recorder: Recorder, sink: MemorySink) -> None:
    number: Any = 4711
    identifier: Any = uuid.UUID(int=7)
    with recorder.episode(task="t") as episode:
        recorder.alias(episode, number)
    recorder.alias(identifier, "order-1")
    recorder.feedback(number, reward=1.0)
    recorder.feedback(identifier, reward=1.0)
    with recorder.attach(identifier) as joined:
        pass
    recorder.flush(120)
    assert [event.alias for event in sink.records("aliases")] == ["4711", "order-1", "4711"]
    (reward,) = [event for event in sink.records("episode-events") if isinstance(event, RewardReported)]
    assert reward.episode_id == joined.id == str(identifier)


def test_a_tool_with_a_measured_time_and_a_number_as_its_name_is_written(recorder: Recorder, sink: MemorySink) -> None:
    number: Any = 4711
    with recorder.episode(task="t") as episode:
        episode.tool("lookup", latency_ms=cast(Any, 12.7))
        episode.tool(number, tool_call_id=number)
    *_, lookup, numbered, _, closed = events(recorder, sink)
    assert (lookup.name, lookup.latency_ms) == ("lookup", 12)
    assert (numbered.name, numbered.tool_call_id) == ("4711", "4711")
    assert closed.count == 4, "its events are whole"


def test_a_time_that_is_no_number_costs_the_tool_alone(recorder: Recorder, sink: MemorySink) -> None:
    with recorder.episode(task="t") as episode:
        assert episode.tool("lookup", latency_ms=cast(Any, float("nan"))) is None
        episode.tool("lookup", latency_ms=1 << 70)
    all_events = events(recorder, sink)
    assert [event.latency_ms for event in all_events if isinstance(event, ToolCalled)] == [None]
    assert [event.count for event in all_events if isinstance(event, WriterClosed)] == [3]


def test_an_empty_alias_names_nothing(recorder: Recorder, sink: MemorySink) -> None:
    with recorder.episode(task="t") as episode:
        recorder.alias(episode, "")
        assert recorder.feedback("", reward=1.0) is None
        assert recorder.feedback(episode="", reward=1.0) is None
    recorder.flush(120)
    assert [type(event).__name__ for event in sink.records()] == ["EpisodeStarted", "EpisodeEnded", "WriterClosed"]
    assert recorder.counters["hook_errors.alias"] == 1
    assert recorder.counters["hook_errors.feedback"] == 2


def test_feedback_on_an_empty_conversation_is_counted_as_an_error(recorder: Recorder, sink: MemorySink) -> None:
    assert recorder.feedback(conversation="", reward=1.0) is None
    recorder.flush(120)
    assert (list(sink.records()), recorder.counters["hook_errors.feedback"]) == ([], 1)


def test_none_is_not_an_alias_of_all_that_have_none(recorder: Recorder, sink: MemorySink) -> None:
    nothing = cast(Any, None)
    with recorder.episode(task="t") as episode:
        recorder.alias(episode, nothing)
        episode.alias(nothing)
        with recorder.attach(nothing) as attached:
            assert not attached.sampled
    recorder.flush(120)
    assert list(sink.records("aliases")) == []
    assert (recorder.counters["hook_errors.alias"], recorder.counters["hook_errors.attach"]) == (2, 1)


def test_invalid_input_of_users_switches_no_hook_off(recorder: Recorder, sink: MemorySink) -> None:
    with recorder.episode(task="open") as own_episode:
        for _ in range(2 * MOST_FAILURES):
            assert recorder.feedback("order-7", reward=cast(Any, "great")) is None
    for _ in range(2 * MOST_FAILURES):
        with recorder.attach(cast(Any, None)):
            pass
    assert recorder.feedback("order-7", reward=1.0) is not None
    with recorder.attach({"rollbus-episode": "e1"}) as joined:
        assert joined.id == "e1"
        recorder.tool("lookup")
    assert recorder.counters["hook_errors.feedback"] == 2 * MOST_FAILURES
    all_events = events(recorder, sink)
    assert [reward.value for reward in sink.records("aliases")] == [1.0]
    assert [event.name for event in all_events if isinstance(event, ToolCalled)] == ["lookup"]
    closed = {event.episode_id: event.partial for event in all_events if isinstance(event, WriterClosed)}
    assert closed[own_episode.id] == ()


def test_another_process_goes_on_with_an_episode_as_its_own_writer(recorder: Recorder, sink: MemorySink) -> None:
    other = init(sink=sink, namespace="t.")
    with recorder.episode(task="t") as episode:
        with other.attach({name.title(): value for name, value in recorder.headers().items()}) as attached:
            other.tool("remote")
        assert attached.id == episode.id
    assert other.close(120)
    remote = [event for event in events(recorder, sink) if event.writer_id != recorder.writer_id]
    assert [type(event) for event in remote] == [ToolCalled, WriterClosed]
    assert {event.episode_started_at_ms for event in remote} == {episode.started_at_ms}
    assert remote[-1].count == 1
    with other.attach({}) as nothing:
        assert not nothing.recording


@pytest.mark.parametrize("digits", [30, 5000])
def test_an_impossible_time_in_the_headers_costs_no_event(recorder: Recorder, sink: MemorySink, digits: int) -> None:
    with recorder.attach({"rollbus-episode": "e1", "rollbus-started": "9" * digits}):
        recorder.tool("lookup")
    assert [(type(event), event.episode_started_at_ms) for event in events(recorder, sink)] == [
        (ToolCalled, 0),
        (WriterClosed, 0),
    ]


@pytest.mark.parametrize("headers", [{"host": "shop"}, {"rollbus-episode": ""}])
def test_headers_without_an_episode_hide_no_open_one(
    recorder: Recorder, sink: MemorySink, headers: dict[str, str]
) -> None:
    with recorder.attach(headers):
        assert recorder.headers() == {}
        with recorder.episode(task="of its own") as own_episode, recorder.attach({}):
            assert recorder.current_episode() is own_episode
            assert recorder.headers() == own_episode.headers()
    assert [type(event) for event in events(recorder, sink)] == [EpisodeStarted, EpisodeEnded, WriterClosed]


def test_an_unsampled_episode_is_unrecorded_in_other_processes_too(recorder: Recorder, sink: MemorySink) -> None:
    unsampled = init(sink=sink, sample_rate=0)
    with unsampled.episode(task="t") as episode:
        headers = unsampled.headers()
        assert headers == episode.headers()
    with recorder.attach(headers):
        recorder.tool("x")
        assert recorder.headers() == headers  # further on too
        with recorder.episode(task="child"):
            pass
    assert events(recorder, sink) == []
    assert init(enabled=False).start(task="t").headers() == {}  # what is not recorded here may be recorded there


def test_groups_are_sampled_whole_with_their_feedback(sink: MemorySink) -> None:
    recorder = init(sink=sink, namespace="t.", sample_rate=0.5)
    members: dict[str, list[Episode]] = {}
    for group in range(40):
        for _ in range(3):
            with recorder.episode(task="t", group_id=f"g{group}") as episode, recorder.episode(task="c") as child:
                members.setdefault(f"g{group}", []).append(episode)
                assert child.sampled == episode.sampled
            recorder.feedback(episode.id, reward=1.0)
    assert recorder.close(120)
    assert {len({episode.sampled for episode in group}) for group in members.values()} == {1}
    recorded_episodes = {event.root_episode_id for event in sink.records("episode-events")}
    assert recorded_episodes == {episode.id for group in members.values() for episode in group if episode.sampled}
    assert 5 < sum(group[0].sampled for group in members.values()) < 35


def test_a_disabled_recorder_records_and_wraps_nothing(sink: MemorySink) -> None:
    recorder = init(sink=sink, enabled=False)
    client = object()
    assert recorder.wrap(client) is client
    with recorder.episode(task="t") as episode:
        episode.reward(1.0)
    recorder.feedback("order-1", reward=1.0)
    assert recorder.close(120)
    assert sink.sent == []


def test_an_episode_names_the_misses_of_its_process(recorder: Recorder, sink: MemorySink) -> None:
    with recorder.episode(task="before"):
        pass
    with recorder.episode(task="during"):
        thread = threading.Thread(target=lambda: recorder.tool("lookup"))
        thread.start()
        thread.join()
        recorder.wrap(object())
    with recorder.episode(task="after"):
        pass
    closed = [event for event in events(recorder, sink) if isinstance(event, WriterClosed)]
    assert [event.partial for event in closed] == [(), ("calls_outside_episode", "hook_errors"), ()]


def test_an_episode_can_be_excluded_before_and_after_its_end(recorder: Recorder, sink: MemorySink) -> None:
    with recorder.episode(task="t") as episode:
        episode.exclude("test traffic")
    episode.exclude("asked to")
    _, first, _, closed, last = events(recorder, sink)
    assert [type(record) for record in (first, closed, last)] == [Excluded, WriterClosed, Excluded]
    assert (first.reason, last.reason) == ("test traffic", "asked to")
    assert (last.episode_id, last.sequence) == (episode.id, -1)


def test_wrong_settings_are_reported_together_at_the_start(sink: MemorySink) -> None:
    wrong: Any = {"namespace": "a b", "sample_rate": 2, "logprobs": "maybe", "max_queue_events": 0, "spool_bytes": -1}
    message = r"namespace is 'a b'.*sample_rate is 2.*logprobs is 'maybe'.*max_queue_events is 0.*spool_bytes is -1"
    with pytest.raises(ConfigurationError, match=message):
        init(sink=sink, **wrong)


def test_an_address_that_no_broker_can_have_is_reported_at_the_start(sink: MemorySink) -> None:
    with pytest.raises(ConfigurationError, match="'http://broker:9092' is not host:port"):
        init(bootstrap_servers="http://broker:9092")
    init(bootstrap_servers="", enabled=False).close(1)
    init(bootstrap_servers="", sink=sink).close(1)


async def test_an_async_generator_may_be_closed_in_another_task(recorder: Recorder, sink: MemorySink) -> None:
    async def numbers() -> Any:
        with recorder.episode(task="generator"):
            yield 1
            yield 2

    generator = numbers()
    assert await anext(generator) == 1
    await asyncio.create_task(generator.aclose())
    assert [type(event) for event in events(recorder, sink)] == [EpisodeStarted, EpisodeEnded, WriterClosed]
