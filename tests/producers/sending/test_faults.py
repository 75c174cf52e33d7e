"""Whatever breaks, the host's calls go through, memory stays bounded, and the counters add up."""

import datetime
import json
import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from rollbus.producers import MemorySink, Recorder, init
from rollbus.producers.episode.episode import MAX_ERROR_CHARACTERS
from rollbus.producers.turns.answer import AnswerChoice, ServerAnswer
from rollbus.producers.turns.turn_record import Exchange
from rollbus.schemas.records.events import EpisodeEnded, Excluded, ToolCalled, TurnRecorded
from tests.producers.capture.test_refusals import refusing
from tests.producers.openai_server import Server, completion

HELLO: Any = [{"role": "user", "content": "my number is 47-zz-11"}]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="rollbus")


def assert_adds_up(recorder: Recorder) -> None:
    """Every event is delivered, kept on disk at the end, dropped for a reason, or still queued."""
    counters = recorder.counters
    dropped = recorder.counts.total("events_dropped")
    out = counters.get("events_delivered", 0) + counters.get("events_spooled", 0)
    assert counters["events_emitted"] == out + dropped + counters["events_queued"]


def run_episodes(recorder: Recorder, server: Server, count: int = 1) -> None:
    """What an agent does."""
    client = recorder.wrap(server.client())
    for _ in range(count):
        with recorder.episode(task="t", labels={"mail": "47-zz-11"}) as episode:
            answer = client.chat.completions.create(model="agent", messages=HELLO)
            assert answer.choices[0].message.content == "Hello there"
            chunks = list(client.chat.completions.create(model="agent", messages=HELLO, stream=True))
            assert len(chunks) in (3, 4)  # the server's usage chunk shows where the episode was dropped
            episode.tool("look", arguments="47-zz-11", result="47-zz-11")
            episode.reward(1.0, comment="47-zz-11")


def turns(sink: MemorySink) -> list[TurnRecorded]:
    return [event for event in sink.records("episode-events") if isinstance(event, TurnRecorded)]


def test_masked_text_leaves_without_its_tokens(sink: MemorySink, server: Server) -> None:
    recorder = init(sink=sink, redact=lambda text: text.replace("47-zz-11", "#"))
    run_episodes(recorder, server)
    assert recorder.close(120)
    assert b"47-zz-11" not in b"".join(record.value for record in sink.sent)
    for turn in turns(sink):
        assert turn.untrainable_reason == "masked_text"
        assert turn.prompt_token_ids is turn.completion_token_ids is turn.logprobs is None
    assert_adds_up(recorder)


class Panic(BaseException):
    """What a library in Rust raises."""


def panic(text: str) -> str:
    raise Panic(text)


@pytest.mark.parametrize("redact", [lambda text: 1 / 0, sys.exit, panic, lambda text: None, lambda text: text.encode()])
def test_a_failing_redaction_lets_nothing_out(sink: MemorySink, server: Server, redact: Any) -> None:
    recorder = init(sink=sink, redact=redact)
    run_episodes(recorder, server)
    assert recorder.close(120)
    sent = b"".join(record.value for record in sink.sent)
    assert b"47-zz-11" not in sent
    assert b"Hello" not in sent
    assert [turn.untrainable_reason for turn in turns(sink)] == ["redaction_failed"] * 2
    assert recorder.counters["hook_errors.redact"] >= 2
    assert_adds_up(recorder)


def test_every_text_whose_redaction_fails_is_counted(sink: MemorySink) -> None:
    recorder = init(sink=sink, redact=lambda text: f"{1 / 0}")
    with suppress(RuntimeError), recorder.episode(task="t", labels={"mail": "a"}) as episode:
        episode.reward(1.0, comment="b")
        recorder.feedback(episode, reward=1.0, comment="c")
        episode.exclude("d")
        raise RuntimeError("e")
    assert recorder.close(120)
    assert recorder.counters["hook_errors.redact"] == 5


def test_a_secret_in_a_cut_error_is_masked(sink: MemorySink, server: Server) -> None:
    recorder = init(sink=sink, redact=lambda text: text.replace("47-zz-11", "#"))
    recorder.wrap(server.client(api_key="sk-very-secret"))
    for secret in ("sk-very-secret", "47-zz-11"):
        for visible_characters in range(len(secret)):
            text = "x" * (MAX_ERROR_CHARACTERS - len("RuntimeError: ") - visible_characters) + secret
            with pytest.raises(RuntimeError), recorder.episode(task="t"):
                raise RuntimeError(text)
    assert recorder.close(120)
    ends = [event for event in sink.records("episode-events") if isinstance(event, EpisodeEnded)]
    assert {(end.error or "").rstrip("[api key]#") for end in ends} <= {
        "RuntimeError: " + "x" * count for count in range(MAX_ERROR_CHARACTERS)
    }


# The oldest client that is supported would send a function's name as the key: it has to be text there.
WAYS_TO_GIVE_A_KEY = ["as text", "later", *(["by a function"] if hasattr(openai.OpenAI, "_refresh_api_key") else [])]


@pytest.mark.parametrize("given", WAYS_TO_GIVE_A_KEY)
def test_a_key_that_the_server_repeats_in_its_error_is_not_recorded(
    sink: MemorySink, server: Server, given: str
) -> None:
    server.script = lambda body: httpx.Response(401, json={"error": {"message": "no such key: sk-very-secret"}})
    recorder = init(sink=sink)
    keys: dict[str, Any] = {"as text": "sk-very-secret", "by a function": lambda: "sk-very-secret", "later": "unused"}
    client = recorder.wrap(server.client(api_key=keys[given]))
    if given == "later":
        client.api_key = "sk-very-secret"

    @recorder.episode
    def agent() -> None:
        try:
            client.chat.completions.create(model="agent", messages=HELLO)
        except openai.AuthenticationError as error:
            recorder.tool("ask", error=str(error))
            raise

    with pytest.raises(openai.AuthenticationError):
        agent()
    assert recorder.close(120)
    sent = b"".join(record.value for record in sink.sent)
    assert b"no such key: [api key]" in sent
    assert b"sk-very-secret" not in sent


def test_a_full_queue_drops_whole_episodes(server: Server) -> None:
    sink = MemorySink()
    sink.available = False
    recorder = init(sink=sink, max_queue_events=10)
    first = recorder.start(task="first")
    run_episodes(recorder, server, count=5)
    sink.available = True
    first.end()
    assert recorder.close(120)
    by_episode: dict[str, list[Any]] = {}
    for event in sink.records("episode-events"):
        by_episode.setdefault(event.episode_id, []).append(event)
    whole = [own_events for own_events in by_episode.values() if not isinstance(own_events[-1], Excluded)]
    assert all(own_events[-1].count == len(own_events) - 1 for own_events in whole), "an episode went out with a gap"
    assert 1 <= len(whole) < 6
    assert recorder.counters["episodes_dropped.queue_full"] == 6 - len(whole)
    assert_adds_up(recorder)


def test_an_episode_dropped_half_sent_is_excluded(server: Server) -> None:
    sink = MemorySink()
    recorder = init(sink=sink, max_queue_events=3)
    episode = recorder.start(task="t")
    episode.tool("sent")
    assert recorder.flush(120)
    sink.available = False
    for number in range(10):
        episode.tool(f"unsent-{number}")
    assert episode.dropped
    episode.end()
    sink.available = True
    assert recorder.close(120)
    last = sink.records("episode-events")[-1]
    assert isinstance(last, Excluded)
    assert last.reason == "producer_queue_full"
    assert_adds_up(recorder)


def test_a_record_that_the_sink_refuses_is_counted(sink: MemorySink) -> None:
    sink.largest_bytes = 1000
    recorder = init(sink=sink)
    with recorder.episode(task="t") as episode:
        episode.tool("large", result="x" * 5000)
    assert recorder.close(120)
    assert recorder.counters["events_dropped.refused_by_sink"] == 1
    assert_adds_up(recorder)


BROKEN: list[dict[str, Any]] = [
    {"choices": []},
    {"choices": None},
    {"usage": None},
    {"usage": {"completion_tokens": "many"}},
    {"prompt_token_ids": "abc"},
    {"prompt_token_ids": [1, -5]},
    {"prompt_token_ids": [1, 2**40]},
    {"prompt_token_ids": [1.5]},
    {"choices": [{"index": "x", "message": None}]},
    {"choices": [{"index": 0, "message": {"role": 5, "content": ["a"], "tool_calls": [None, 3]}}]},
    {"choices": [{"index": 0, "message": {"content": "\ud800"}, "logprobs": {"content": [{"logprob": "x"}]}}]},
    {"choices": [{"index": 0, "message": {"content": "x"}, "logprobs": [1, 2]}]},
    {"choices": [{"index": 0, "message": {"content": "x"}, "token_ids": {"a": 1}}]},
]


@pytest.mark.parametrize("broken", BROKEN, ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_a_misshapen_answer_reaches_the_host_as_an_untrainable_turn(
    sink: MemorySink, server: Server, broken: dict[str, Any], stream: bool
) -> None:
    body = {**completion(), **broken}
    server.script = lambda request: [body] if stream else body
    recorder = init(sink=sink)
    client = recorder.wrap(server.client())
    with recorder.episode(task="t"):
        answer = client.chat.completions.create(model="agent", messages=HELLO, stream=stream)
        if stream:
            list(answer)
    assert recorder.close(120)
    (turn,) = turns(sink)
    assert not turn.trainable
    assert_adds_up(recorder)


@pytest.mark.parametrize(
    "messages", [[object()], [{"role": "user", "content": object()}], [{"content": "\ud800"}], [[]]]
)
def test_a_request_of_any_shape_gives_the_same_as_without_us(sink: MemorySink, server: Server, messages: Any) -> None:
    def outcome(client: Any) -> str:
        try:
            return str(client.chat.completions.create(model="agent", messages=messages).choices[0].message.content)
        except Exception as error:
            return type(error).__name__

    recorder = init(sink=sink)
    with recorder.episode(task="t"):
        assert outcome(recorder.wrap(server.client())) == outcome(server.client())
    assert recorder.close(120)
    assert_adds_up(recorder)


def test_the_next_turn_sends_the_messages_of_an_unwritten_one(sink: MemorySink) -> None:
    recorder = init(sink=sink)
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    with recorder.episode(task="t") as episode:
        for latency_ms in (1 << 63, 1, 2):
            answer = ServerAnswer(choices=(AnswerChoice(content="Hello there"),))
            request = {"messages": HELLO, "tools": tools}
            episode.record(Exchange(request=request, answer=answer, latency_ms=latency_ms), "")
    assert recorder.close(120)
    first, second, third = turns(sink)
    assert (first.untrainable_reason, first.prefix_count, first.tools) == ("capture_failed", 0, None)
    assert (second.prefix_count, len(second.added_messages), second.tools is None) == (0, 1, False)
    assert (third.prefix_count, len(third.added_messages), third.tools is None) == (1, 0, True)
    assert recorder.counts.total("turns_untrainable") == 3


def test_read_once_tools_are_recorded_and_sent_again(sink: MemorySink) -> None:
    server = refusing("return_token_ids")
    tool: Any = {"type": "function", "function": {"name": "look", "parameters": {}}}
    recorder = init(sink=sink)
    client = recorder.wrap(server.client())
    with recorder.episode(task="t"):
        client.chat.completions.create(model="agent", messages=HELLO, tools=iter([tool]))
    assert [request["tools"] for request in server.requests] == [[tool], [tool]]
    assert recorder.close(120)
    (turn,) = turns(sink)
    assert json.loads(turn.tools or "") == [tool]


def test_unrecordable_read_once_messages_still_reach_the_server(sink: MemorySink, server: Server) -> None:
    part = {"type": "text", "text": "Say hello"}
    message: Any = {"role": "user", "content": (part_once for part_once in [part])}
    recorder = init(sink=sink)
    client = recorder.wrap(server.client())
    with recorder.episode(task="t"):
        client.chat.completions.create(model="agent", messages=iter([message]))
    assert server.requests[0]["messages"] == [{"role": "user", "content": [part]}]
    assert recorder.close(120)


def test_values_and_names_that_raise_when_read_do_not_harm_the_host(sink: MemorySink) -> None:
    class Hostile:
        def __str__(self) -> str:
            raise RuntimeError("do not look")

        __repr__ = __str__

    recorder = init(sink=sink)
    hostile: Any = Hostile()
    with recorder.episode(task="t", example_id=hostile), recorder.function(hostile):
        assert recorder.headers() == {"rollbus-sampled": "0"}  # nor is anything recorded elsewhere
    with recorder.episode(task="t", labels={"a": hostile}) as episode:
        assert episode.tool("x", result=hostile) is not None
        assert episode.reward(hostile) is None
        assert recorder.feedback(hostile, reward=1.0) is None
        recorder.alias(episode, hostile)
        recorder.alias(hostile, "order-1")
        recorder.wrap(hostile)
        with recorder.attach(hostile):
            pass
        with recorder.function(hostile):
            assert recorder.headers() == {}
    assert recorder.close(120)
    errors = {name.removeprefix("hook_errors.") for name in recorder.counters if name.startswith("hook_errors.")}
    assert errors >= {"start", "headers", "reward", "feedback", "alias"}
    assert_adds_up(recorder)


def test_nothing_is_sent_after_close(sink: MemorySink, server: Server) -> None:
    recorder = init(sink=sink)
    run_episodes(recorder, server)
    assert recorder.close(120)
    sent = len(sink.sent)
    run_episodes(recorder, server)
    assert len(sink.sent) == sent
    assert recorder.close(120)
    assert_adds_up(recorder)


def test_texts_that_utf8_cannot_carry_lose_no_event(sink: MemorySink, server: Server) -> None:
    odd = "a\ud83d"
    recorder = init(sink=sink, namespace="t.")
    client = recorder.wrap(server.client())
    with recorder.episode(task=odd, example_id=odd, agent=odd, labels={odd: odd}) as episode, recorder.function(odd):
        client.chat.completions.create(model="agent", messages=HELLO)
        recorder.tool(odd, arguments={odd: odd}, result=odd, error=odd)
        episode.reward(1.0, name=odd, comment=odd)
        recorder.alias(episode, odd)
        assert recorder.headers()["rollbus-function"] == "a%3F"
    recorder.feedback(odd, reward=1.0, name=odd, comment=odd)
    assert recorder.close(120)
    assert not [name for name in recorder.counters if name.startswith("hook_errors")]
    assert [type(event).__name__ for event in sink.records("episode-events")] == [
        "EpisodeStarted",
        "TurnRecorded",
        "ToolCalled",
        "RewardReported",
        "EpisodeEnded",
        "WriterClosed",
    ]
    assert [event.alias for event in sink.records("aliases")] == ["a?", "a?"]


def test_read_once_values_are_left_to_the_host(sink: MemorySink, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("line")
    recorder = init(sink=sink, namespace="t.")
    with recorder.episode(task="t") as episode, (tmp_path / "file").open() as file:
        pieces = (number for number in range(3))
        nested = iter([1, 2])
        episode.tool("stream", arguments={"of": nested}, result=pieces)
        episode.tool("read", result=file)
        with tempfile.NamedTemporaryFile("w+") as temporary:  # no iterator itself, but it reads on all the same
            temporary.write("line")
            temporary.seek(0)
            episode.tool("read", result=temporary)
            assert temporary.read() == "line"
        assert list(pieces) == [0, 1, 2]
        assert list(nested) == [1, 2]
        assert file.read() == "line"
    recorder.close(120)
    assert [event.name for event in sink.records("episode-events") if hasattr(event, "arguments")] == [
        "stream",
        "read",
        "read",
    ]


class Table:
    """A table as pandas has them: what it gives when it is iterated is not what it holds."""

    def __iter__(self) -> Iterator[str]:
        return iter(["column"])

    def __len__(self) -> int:
        return 1

    def __str__(self) -> str:
        return "  column\n0      7"


class Number:
    """A number or an array as NumPy has them."""

    def tolist(self) -> list[float]:
        return [1.5, 2.5]


WHEN = datetime.datetime(2026, 1, 2, 3, 4)


def test_a_tools_values_are_recorded_as_what_they_hold(sink: MemorySink) -> None:
    recorder = init(sink=sink)
    with recorder.episode(task="t") as episode:
        arguments = {"ids": {7: 1}.keys(), "of": range(2), "at": Number(), "since": WHEN, "raw": b"x"}
        episode.tool("query", arguments=arguments, result=Table())
    assert recorder.close(120)
    (tool,) = [event for event in sink.records("episode-events") if isinstance(event, ToolCalled)]
    assert tool.arguments == '{"at":[1.5,2.5],"ids":[7],"of":[0,1],"raw":"b\'x\'","since":"2026-01-02 03:04:00"}'
    assert tool.result == "  column\n0      7"
