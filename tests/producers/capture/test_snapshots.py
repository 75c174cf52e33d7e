"""What is recorded is what was asked and answered then, whatever the application does with its objects afterwards.

The recorder reads an answer later, in its own thread; here that thread is held until the application has changed all.
"""

from typing import Any

import pytest

from rollbus.producers import MemorySink, Recorder, init
from tests.producers.openai_server import Server, completion, streamed
from tests.producers.recorded_events import assert_whole, turns
from tests.producers.sending.test_delivery_faults import BlockingSink

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}


def spoil(value: Any) -> None:
    """Change everything that can be changed in an object of the application or the client."""
    if isinstance(value, list):
        for inner in value:
            spoil(inner)
        value.clear()
    elif isinstance(value, dict):
        for inner in value.values():
            spoil(inner)
        value.clear()
    elif hasattr(value, "__pydantic_extra__"):
        for name, inner in [*vars(value).items(), *(value.__pydantic_extra__ or {}).items()]:
            if name not in ("logprobs", "token_ids", "prompt_token_ids"):  # numbers, which nobody edits
                spoil(inner)
            setattr(value, name, None)


@pytest.mark.parametrize("with_logprobs", [False, True])
def test_later_changes_by_the_application_are_not_recorded(with_logprobs: bool) -> None:
    sink = BlockingSink()
    recorder = init(sink=sink)
    server = Server(lambda body: completion(tool_calls=[CALL]))
    client = recorder.wrap(server.client())
    parts = [{"type": "text", "text": "look at it"}]
    messages: list[Any] = [{"role": "system", "content": "Be kind"}, {"role": "user", "content": parts}]
    with recorder.episode(task="t"):
        answer = client.chat.completions.create(model="agent", messages=messages, logprobs=with_logprobs or None)
        spoil(messages)
        spoil(parts)
        spoil(answer)
        sink.go.set()
    (turn,) = turns(recorder, sink)
    assert_whole(turn)
    assert (
        turn.completion.tool_calls
        == '[{"function":{"arguments":"{\\"at\\": 1}","name":"look"},"id":"c1","type":"function"}]'
    )
    assert [message.role for message in turn.added_messages] == ["system", "user"]
    assert turn.added_messages[0].content == "Be kind"
    assert turn.added_messages[1].parts == '[{"text":"look at it","type":"text"}]'
    recorder.close(120)


@pytest.mark.parametrize("thinks", [False, True])
def test_changes_by_the_application_in_a_stream_are_not_recorded(thinks: bool) -> None:
    sink = BlockingSink()
    recorder = init(sink=sink)
    chunks = streamed()
    if thinks:
        chunks[1]["choices"][0]["delta"]["reasoning_content"] = "hm"
    client = recorder.wrap(Server(lambda body: chunks).client())
    with recorder.episode(task="t"):
        for chunk in client.chat.completions.create(
            model="agent", messages=[{"role": "user", "content": "Say hello"}], stream=True
        ):
            spoil(chunk)
        sink.go.set()
    (turn,) = turns(recorder, sink)
    assert_whole(turn)
    assert (turn.model, turn.response_id, turn.streamed) == ("agent@3", "chatcmpl-1", True)
    assert turn.completion.content == "Hello there"
    recorder.close(120)


def test_a_request_is_recorded_as_it_was_sent(recorder: Recorder, sink: MemorySink) -> None:
    messages: list[Any] = [{"role": "user", "content": "first"}]

    def script(body: Any) -> Any:
        messages[0]["content"] = "edited"
        messages.append({"role": "user", "content": "added"})
        return completion()

    client = recorder.wrap(Server(script).client())
    with recorder.episode(task="t"):
        client.chat.completions.create(model="agent", messages=messages)
    (turn,) = turns(recorder, sink)
    assert [message.content for message in turn.added_messages] == ["first"]


def test_many_answers_at_once_are_read_at_once_and_stay_exact() -> None:
    sink = BlockingSink()
    recorder = init(sink=sink, max_queue_bytes=100_000)
    client = recorder.wrap(Server().client())
    with recorder.episode(task="t"):
        assert sink.blocks.wait(120)  # by the start of the episode: of what comes now nothing is taken out
        for _ in range(12):
            client.chat.completions.create(model="agent", messages=[{"role": "user", "content": "Say hello"}])
        assert recorder.outbox.delivery.crowded
        sink.go.set()
    recorded_turns = turns(recorder, sink)
    assert len(recorded_turns) == 12
    for turn in recorded_turns:
        assert_whole(turn)
    recorder.close(120)
