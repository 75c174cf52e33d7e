"""What is withheld never leaves the process; what stays is still good for what it is kept for."""

from contextlib import suppress
from typing import Any

import pytest

from rollbus.producers import MemorySink, init
from rollbus.schemas.codec import encode
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.events import EpisodeStarted, TurnRecorded
from tests.producers.capture.test_other_surfaces import completion as completion_of_text
from tests.producers.openai_server import Server, completion

SECRET = "the blue house"
TOOLS: Any = [{"type": "function", "function": {"name": SECRET, "parameters": {}}}]


def play(sink: MemorySink, **settings: Any) -> dict[str, int]:
    """Say the secret wherever an agent can say it; returns the counters."""
    recorder = init(sink=sink, **settings)
    client = recorder.wrap(Server(lambda body: completion(content=SECRET)).client())
    with suppress(RuntimeError), recorder.episode(task="t", labels={"user": SECRET}) as episode:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": SECRET}], tools=TOOLS)
        recorder.tool("find", arguments=SECRET, result=SECRET)
        episode.reward(1.0, comment=SECRET)
        raise RuntimeError(SECRET)
    assert recorder.close(120)
    return dict(recorder.counters)


def leaks(sink: MemorySink) -> int:
    """How many events hold the secret."""
    return sum(SECRET.encode() in encode(event) for event in sink.records("episode-events"))


def test_withholding_each_field_hides_it_and_nothing_else() -> None:
    fields: tuple[Any, ...] = ("messages", "tools", "tool_calls", "labels", "comments", "errors")
    open_sink, closed_sink = MemorySink(), MemorySink()
    play(open_sink)
    play(closed_sink, withhold=fields)
    assert leaks(open_sink) == 5  # start, turn, tool, reward, end
    assert leaks(closed_sink) == 0
    for field, still in (("messages", 5), ("labels", 4), ("tool_calls", 4), ("comments", 4), ("errors", 4)):
        sink = MemorySink()
        play(sink, withhold=[field])
        assert leaks(sink) == still, field  # the turn also holds the tools


def test_a_turn_whose_texts_are_withheld_can_still_be_trained(sink: MemorySink) -> None:
    play(sink, withhold=["messages"])
    (turn,) = (event for event in sink.records("episode-events") if isinstance(event, TurnRecorded))
    assert turn.trainable
    assert turn.added_messages[0].content == turn.completion.content  # equal texts stay equal
    assert (turn.completion.content or "").startswith("[withheld ")


def test_a_turn_whose_tokens_are_withheld_keeps_its_texts_and_says_why(sink: MemorySink) -> None:
    play(sink, withhold=["tokens"])
    (turn,) = (event for event in sink.records("episode-events") if isinstance(event, TurnRecorded))
    assert turn.untrainable_reason == "tokens_withheld"
    assert (turn.prompt_token_ids, turn.completion_token_ids, turn.logprobs) == (None, None, None)
    assert turn.completion.content == SECRET


def test_arguments_and_results_of_tools_are_withheld_in_messages_too(sink: MemorySink) -> None:
    recorder = init(sink=sink, withhold=["tool_calls"])
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": f'"{SECRET}"'}}
    client = recorder.wrap(Server(lambda body: completion(tool_calls=[call])).client())
    messages: list[Any] = [{"role": "user", "content": "Find it"}]
    with recorder.episode(task="t"):
        for _ in range(2):
            answer = client.chat.completions.create(model="m", messages=messages)
            messages += [answer.choices[0].message, {"role": "tool", "tool_call_id": "c1", "content": SECRET}]
    assert recorder.close(120)
    assert leaks(sink) == 0
    first, second = (event for event in sink.records("episode-events") if isinstance(event, TurnRecorded))
    assert (first.trainable, second.trainable) == (True, True)
    assert first.added_messages[0].content == "Find it"
    assert first.completion.content == "Hello there"
    assert (second.prefix_count, len(second.added_messages)) == (2, 1)  # equal calls stay equal


@pytest.mark.parametrize(
    ("settings", "says", "stays"),
    [
        ({}, None, True),
        ({"withhold": ["tokens"]}, "tokens_withheld", False),
        ({"withhold": ["messages"]}, None, False),
        ({"redact": lambda text: text.replace(SECRET, "#")}, "masked_text", False),
    ],
)
def test_a_prompt_of_token_ids_does_not_pass_a_redaction(
    sink: MemorySink, settings: Any, says: str | None, stays: bool
) -> None:
    recorder = init(sink=sink, **settings)
    client = recorder.wrap(Server(lambda body: completion_of_text()).client())
    with recorder.episode(task="t"):
        client.completions.create(model="m", prompt=[1, 2, 3])
    assert recorder.close(120)
    (turn,) = (event for event in sink.records("episode-events") if isinstance(event, TurnRecorded))
    assert turn.untrainable_reason == says
    assert (turn.added_messages[0].content == "[1,2,3]") == stays
    assert (turn.prompt_token_ids is None) == (says is not None)


def test_withheld_fields_do_not_reach_the_redaction(sink: MemorySink) -> None:
    counters = play(sink, withhold=["messages", "labels", "tool_calls", "comments", "errors", "tools"], redact=_fail)
    assert not [name for name in counters if name.startswith("hook_errors")]
    (start,) = (event for event in sink.records("episode-events") if isinstance(event, EpisodeStarted))
    assert start.labels["user"].startswith("[withheld ")


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="withhold has prompts; choose among messages, tools"):
        init(sink=MemorySink(), withhold=["prompts"])  # type: ignore[list-item]


def _fail(text: str) -> str:
    raise AssertionError("redact was called")
