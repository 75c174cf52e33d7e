"""Anthropic's and Google's own clients: turns without tokens, with tools and thoughts, for analytics and judging."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import httpx2
import pytest
from google import genai
from google.genai import types

from rollbus.producers import MemorySink, Recorder
from rollbus.producers.integrations.instrument import instrument
from rollbus.schemas.records.events import TurnRecorded
from tests.producers.recorded_events import turns

ASK: Any = [
    {"role": "user", "content": "How many bolts?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t0", "name": "stock", "input": {"item": "nuts"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t0", "content": "5"}]},
]
CALL = {"type": "tool_use", "id": "t1", "name": "stock", "input": {"item": "bolts"}}
BLOCKS = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "Let me see."}, CALL]
MESSAGE = {"id": "m1", "type": "message", "role": "assistant", "model": "claude", "content": BLOCKS,
           "stop_reason": "tool_use", "stop_sequence": None,
           "usage": {"input_tokens": 7, "output_tokens": 9}}  # fmt: skip
EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Let me "}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "see."}},
    {"type": "content_block_stop", "index": 1},
    {"type": "content_block_start", "index": 2, "content_block": {**CALL, "input": {}}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"item": '}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '"bolts"}'}},
    {"type": "content_block_stop", "index": 2},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
]
PARTS = [
    {"text": "hm", "thought": True},
    {"text": "Let me see."},
    {"functionCall": {"id": "t1", "name": "stock", "args": {"item": "bolts"}}},
]
CONTENT: dict[str, Any] = {
    "candidates": [{"content": {"role": "model", "parts": PARTS}, "finishReason": "STOP", "index": 0}],
    "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 9},
    "modelVersion": "gemini",
    "responseId": "g1",
}


@pytest.fixture(autouse=True)
def _instrument_clients(recorder: Recorder) -> Iterator[None]:
    patches = instrument(recorder)
    yield
    patches.undo()


def assert_called(turn: TurnRecorded) -> None:
    """The turn says what the model thought, said and called."""
    assert (turn.untrainable_reason, turn.finish_reason) == ("no_token_ids", "tool_calls")
    assert (turn.prompt_tokens, turn.completion_tokens) == (7, 9)
    assert (turn.completion.content, turn.completion.reasoning) == ("Let me see.", "hm")
    (call,) = json.loads(turn.completion.tool_calls or "")
    assert (call["id"], call["function"]["name"]) == ("t1", "stock")
    assert json.loads(call["function"]["arguments"]) == {"item": "bolts"}


@pytest.mark.parametrize("streams", [False, True])
def test_a_message_of_anthropic_is_a_turn_without_tokens(recorder: Recorder, sink: MemorySink, streams: bool) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        assert "logprobs" not in body
        if not body.get("stream"):
            return httpx2.Response(200, json=MESSAGE)
        lines = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in EVENTS)
        return httpx2.Response(200, content=lines.encode(), headers={"content-type": "text/event-stream"})

    options: Any = {"model": "claude", "max_tokens": 50, "system": "Be brief", "messages": ASK}
    with recorder.episode(task="t"), httpx2.Client(transport=httpx2.MockTransport(answer)) as http:
        client = anthropic.Anthropic(api_key="k", base_url="http://server", http_client=http)
        if streams:
            with client.messages.stream(**options) as stream:
                assert "".join(stream.text_stream) == "Let me see."
        else:
            assert client.messages.create(**options).content[1].text == "Let me see."
    (turn,) = turns(recorder, sink)
    assert_called(turn)
    assert (turn.streamed, turn.model, turn.response_id) == (streams, "claude", "m1")
    assert [message.role for message in turn.added_messages] == ["system", "user", "assistant", "tool"]
    assert (turn.added_messages[3].tool_call_id, turn.added_messages[3].content) == ("t0", "5")


@pytest.mark.parametrize("streams", [False, True])
def test_a_content_of_google_is_a_turn_without_tokens(recorder: Recorder, sink: MemorySink, streams: bool) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if "stream" not in request.url.path:
            return httpx.Response(200, json=CONTENT)
        parts = [{"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]} for part in PARTS]
        last = {**CONTENT, "candidates": [{"content": {"role": "model", "parts": []}, "finishReason": "STOP"}]}
        lines = "".join(f"data: {json.dumps(chunk)}\r\n\r\n" for chunk in (*parts, last))
        return httpx.Response(200, content=lines.encode(), headers={"content-type": "text/event-stream"})

    with recorder.episode(task="t"), httpx.Client(transport=httpx.MockTransport(answer)) as http:
        options = types.HttpOptions(base_url="http://server", httpx_client=http)
        models = genai.Client(api_key="k", http_options=options).models
        request_fields: Any = {"model": "gemini", "contents": "How many bolts?"}
        if streams:
            assert [chunk.candidates is not None for chunk in models.generate_content_stream(**request_fields)] == [
                True
            ] * 4
        else:
            assert models.generate_content(**request_fields).function_calls is not None
    (turn,) = turns(recorder, sink)
    assert_called(turn)
    assert (turn.streamed, turn.model, turn.response_id) == (streams, "gemini", "g1")
    assert [message.content for message in turn.added_messages] == ["How many bolts?"]


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"generationConfig": {"candidateCount": 2}}, 2),
        ({"generationConfig": {"candidate_count": 2}}, 2),
        ({"generation_config": {"candidate_count": 2}}, 2),
        ({"generation_config": {"candidateCount": 2}}, 2),
        ({"generation_config": None}, 1),
    ],
)
def test_each_candidate_of_google_is_a_turn(
    recorder: Recorder, sink: MemorySink, settings: dict[str, Any], count: int
) -> None:
    candidates = [{**CONTENT["candidates"][0], "index": index} for index in range(count)]

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={**CONTENT, "candidates": candidates})

    request_fields = {"contents": [{"role": "user", "parts": [{"text": "How many bolts?"}]}], **settings}
    with recorder.episode(task="t"), httpx.Client(transport=httpx.MockTransport(answer)) as http:
        http.post("http://server/v1beta/models/gemini:generateContent", json=request_fields)
    assert len(turns(recorder, sink)) == count
