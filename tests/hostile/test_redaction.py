"""A name that an agent writes in every disguise: none of them passes `redact`, and no token id spells it out."""

import json
from typing import Any
from urllib.parse import quote

import pytest
from pydantic import BaseModel

from rollbus.producers import MemorySink, init
from rollbus.schemas.codec import encode
from rollbus.schemas.records.events import ToolCalled, TurnRecorded
from tests.producers.openai_server import Server, completion

NAME = "Müller"
ESCAPED_NAME = json.dumps(NAME)[1:-1]
TWICE = json.dumps(json.dumps({"who": NAME}))[1:-1]
DATA_URL = "data:image/png;base64,aGVyIGZhY2U="


def mask(text: str) -> str:
    return text.replace(NAME, "[name]")


def record(answer: dict[str, Any] | None = None, **request: Any) -> tuple[TurnRecorded, bytes]:
    """Record one call with this redaction; returns the turn and all bytes that left."""
    sink = MemorySink()
    recorder = init(sink=sink, redact=mask)
    client = recorder.wrap(Server(lambda body: completion(**(answer or {}))).client())
    request = {"messages": [{"role": "user", "content": "Hello"}], **request}
    with recorder.episode(task="t"):
        client.chat.completions.create(model="m", **request)
    assert recorder.close(120)
    (turn,) = (event for event in sink.records("episode-events") if isinstance(event, TurnRecorded))
    return turn, b"".join(encode(event) for event in sink.records("episode-events"))


def assert_hidden(turn: TurnRecorded, left: bytes) -> None:
    assert turn.untrainable_reason == "masked_text"
    assert (turn.prompt_token_ids, turn.completion_token_ids, turn.logprobs) == (None, None, None)
    for disguise in (NAME, ESCAPED_NAME, TWICE, quote(NAME), "aGVyIGZhY2U", ESCAPED_NAME.replace("\\", "\\\\")):
        assert disguise.encode() not in left


def call_of(arguments: str) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "find", "arguments": arguments}}


@pytest.mark.parametrize(
    "content",
    [
        NAME,
        f'{{"who": "{ESCAPED_NAME}"}}',
        f'```json\n{{"who": "{ESCAPED_NAME}"}}\n```',
        f'{{"result": "{TWICE}"}}',
        f"https://example.org/?who={quote(NAME)}",
        "M\\xfcller",
    ],
)
def test_a_name_in_a_text_is_masked_however_it_is_encoded(content: str) -> None:
    assert_hidden(*record(messages=[{"role": "user", "content": content}]))
    assert_hidden(*record({"content": content}))


@pytest.mark.parametrize(
    "arguments", [f'{{"who": "{ESCAPED_NAME}"}}', f'{{"{ESCAPED_NAME}": 1}}', f'{{"body": "{TWICE}"}}']
)
def test_a_name_in_the_arguments_of_a_tool_is_masked(arguments: str) -> None:
    assert_hidden(*record({"tool_calls": [call_of(arguments)]}))
    assert_hidden(*record(messages=[{"role": "assistant", "tool_calls": [call_of(arguments)]}]))


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": f"https://example.org/{quote(NAME)}.png"}},
        {"type": "image_url", "image_url": {"url": DATA_URL}},
        {"type": "input_audio", "input_audio": {"data": "aGVyIGZhY2U=", "format": "wav"}},
        {"type": "hologram", "hologram": "aGVyIGZhY2U="},
    ],
)
def test_pictures_sounds_and_unknown_parts_are_not_sent(part: dict[str, Any]) -> None:
    assert_hidden(*record(messages=[{"role": "user", "content": [part]}]))


@pytest.mark.parametrize(
    "request_",
    [
        {"extra_body": {"chat_template_kwargs": {"user_name": NAME}}},
        {"extra_body": {"documents": [{"text": f'"{ESCAPED_NAME}"'}]}},
        {"extra_body": {"a field of tomorrow": NAME}},
        {"messages": [{"role": "user", "content": "Hello", "context": NAME}]},
        {"messages": [{"role": f"customer {NAME}", "content": "Hello"}]},
        {"messages": [{"role": "user", "content": "Hello", "name": NAME}]},
        {"functions": [{"name": "find", "description": ESCAPED_NAME}]},
        {"response_format": {"type": "json_schema", "json_schema": {"name": NAME, "schema": {}}}},
    ],
)
def test_a_turn_with_an_unrecorded_part_of_its_prompt_has_no_tokens(request_: dict[str, Any]) -> None:
    assert_hidden(*record(**request_))


def test_a_request_without_the_name_stays_unchanged_and_trainable() -> None:
    class Form(BaseModel):
        answer: str

    for verdict, request in (
        (None, {"messages": [{"role": "user", "content": [{"type": "text", "text": "100 % \\n \\u00e9"}]}]}),
        (
            None,
            {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}, "temperature": 0.5, "stop": ["\n"]},
        ),
        (None, {"user": NAME, "metadata": {"who": NAME}}),
        ("sampling_constrained", {"user": NAME, "metadata": {"who": NAME}, "response_format": {"type": "json_object"}}),
    ):
        turn, left = record(**request)
        assert turn.untrainable_reason == verdict
        assert turn.completion_token_ids  # no redaction costs it
        assert NAME.encode() not in left
    picture = {"type": "image_url", "image_url": {"url": "https://example.org/a%20b.png"}}
    turn, _ = record(messages=[{"role": "user", "content": [picture]}])
    assert turn.untrainable_reason == "media_input"  # and not that it could not be redacted


def test_arguments_and_results_of_tools_are_masked() -> None:
    sink = MemorySink()
    recorder = init(sink=sink, redact=mask)
    with recorder.episode(task="t"):
        recorder.tool("find", arguments={"who": ESCAPED_NAME}, result=f'{{"a": "{TWICE}"}}', error=ESCAPED_NAME)
    assert recorder.close(120)
    (tool,) = (event for event in sink.records("episode-events") if isinstance(event, ToolCalled))
    for text in (tool.arguments, tool.result, tool.error):
        assert "[name]" in (text or "")


def test_a_too_deeply_nested_text_is_withheld() -> None:
    text = NAME
    for _ in range(12):
        text = json.dumps(text)
    turn, left = record(messages=[{"role": "user", "content": text}])
    assert turn.untrainable_reason == "redaction_failed"
    assert text.encode() not in left
