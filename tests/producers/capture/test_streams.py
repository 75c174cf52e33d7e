"""However a server cuts its stream, the accumulated answer equals the unstreamed one."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from rollbus.producers.capture.chat import CHAT
from rollbus.producers.capture.chat_stream import StreamAccumulator
from rollbus.producers.capture.surface import Asked
from rollbus.producers.turns.answer import answer_of, read
from tests.producers.openai_server import chunk, logprobs_of

Body = dict[str, Any]
TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


@st.composite
def messages(draw: st.DrawFn) -> Body:
    """An assistant's message: text, reasoning, tool calls or a refusal."""
    kind = draw(st.sampled_from(["text", "tools", "refusal", "both"]))
    message: Body = {"role": "assistant", "content": None}
    if kind in ("text", "both"):
        message["content"] = draw(TEXT)
    if kind in ("tools", "both"):
        message["tool_calls"] = [
            {"id": f"c{n}", "type": "function", "function": {"name": f"f{n}", "arguments": draw(TEXT)}}
            for n in range(draw(st.integers(1, 3)))
        ]
    if kind == "refusal":
        message["refusal"] = draw(TEXT)
    if draw(st.booleans()):
        message["reasoning_content"] = draw(TEXT)
    return message


@st.composite
def answers(draw: st.DrawFn) -> Body:
    """A whole answer of one to three choices."""
    choices = []
    for index in range(draw(st.integers(1, 3))):
        tokens = draw(st.lists(TEXT, min_size=1, max_size=5))
        values = draw(st.lists(st.floats(-20, 0), min_size=len(tokens), max_size=len(tokens)))
        ids = draw(st.lists(st.integers(0, 200_000), min_size=len(tokens), max_size=len(tokens)))
        choices.append(
            {
                "index": index,
                "finish_reason": draw(st.sampled_from(["stop", "length", "tool_calls"])),
                "message": draw(messages()),
                "logprobs": logprobs_of(tokens, values),
                "token_ids": ids,
            }
        )
    usage = {"prompt_tokens": 2, "completion_tokens": 9, "total_tokens": 11}
    return {"id": "r", "object": "chat.completion", "created": 1, "model": "m@7", "choices": choices} | {
        "prompt_token_ids": [4, 5],
        "usage": usage,
    }


def pieces(draw: st.DrawFn, value: Any) -> list[Any]:
    """Cut a text or a list anywhere."""
    cuts = sorted(draw(st.lists(st.integers(0, len(value)), max_size=3)))
    bounds = [0, *cuts, len(value)]
    return [value[start:end] for start, end in pairwise(bounds)]


def deltas_of(draw: st.DrawFn, choice: Body) -> list[Body]:
    """The chunks of one choice, in an order that a server may send them in."""
    index, message = choice["index"], choice["message"]
    deltas: list[Body] = [
        {"delta": {"role": "assistant", "content": ""} if draw(st.booleans()) else {"role": "assistant"}}
    ]
    for name in ("reasoning_content", "content", "refusal"):
        deltas += [{"delta": {name: piece}} for piece in pieces(draw, message.get(name) or "") if piece]
    for position, call in enumerate(message.get("tool_calls") or ()):
        first, *rest = pieces(draw, call["function"]["arguments"])
        function = {"name": call["function"]["name"], "arguments": first}
        calls = [{**call, "index": position, "function": function}]
        calls += [{"index": position, "function": {"arguments": piece}} for piece in rest]
        deltas += [{"delta": {"tool_calls": [one]}} for one in calls]
    entries = pieces(draw, choice["logprobs"]["content"])
    ids, start = choice["token_ids"], 0
    for part in entries:
        deltas.append({"delta": {}, "logprobs": {"content": part}, "token_ids": ids[start : start + len(part)]})
        start += len(part)
    deltas.append({"delta": {}, "finish_reason": choice["finish_reason"]})
    return [{"index": index, "finish_reason": None, **delta} for delta in deltas]


@st.composite
def streams(draw: st.DrawFn) -> tuple[Body, list[Body]]:
    """An answer and the chunks that it may come in."""
    answer = draw(answers())
    queues = [deltas_of(draw, choice) for choice in answer["choices"]]
    chunks = []
    while any(queues):
        ready = [queue for queue in queues if queue]
        taken = draw(st.sampled_from(range(1, len(ready) + 1)))
        chunks.append(chunk([queue.pop(0) for queue in ready[:taken]], id="r", model="m@7"))
    chunks[0]["prompt_token_ids"] = [4, 5]
    chunks.append(chunk([], id="r", model="m@7", usage=answer["usage"]))
    return answer, chunks


@given(streams(), st.booleans(), st.integers(0, 100))
def test_any_chunking_accumulates_to_the_unstreamed_answer_from_objects_and_from_json(
    stream: tuple[Body, list[Body]], hide: bool, cut: int
) -> None:
    answer, chunks = stream
    whole = read(answer_of(ChatCompletion.model_validate(answer)))
    accumulator, partial = StreamAccumulator(), StreamAccumulator()
    for number, item in enumerate(chunks):
        accumulator.add(ChatCompletionChunk.model_validate(item))
        if number < cut:
            partial.add(ChatCompletionChunk.model_validate(item))
    assert read(accumulator.answer()) == whole
    assert not read(partial.answer(complete=False)).complete, "a stream cut anywhere still gives an answer"

    accumulator, asked = StreamAccumulator(), Asked() if hide else None
    keep = accumulator.keeper(asked)
    shown = [
        item
        for item in chunks
        if keep(item) or accumulator.add(item, asked) or asked is None or CHAT.shown(item, asked)
    ]
    assert read(accumulator.answer()) == whole
    texts = json.dumps(shown)
    assert ("token_ids" in texts, "logprob" in texts.replace('"logprobs": null', ""), '"usage"' in texts) == (
        (not hide,) * 3
    )


def test_chunks_that_come_after_the_record_change_nothing_in_it_and_are_still_hidden() -> None:
    accumulator = StreamAccumulator()
    keep = accumulator.keeper(Asked())
    body = {"index": 0, "delta": {"content": "a"}, "logprobs": logprobs_of(["a"], [-1.0]), "token_ids": [7]}
    body["finish_reason"] = None
    opening, first, late = chunk([{**body, "token_ids": None}]), chunk([dict(body)]), chunk([dict(body)])
    assert not keep(opening)
    accumulator.add(opening, Asked())
    assert keep(first)
    answer = accumulator.answer()
    assert not keep(late)
    assert not accumulator.add(late, Asked())
    assert CHAT.shown(late, Asked())
    assert read(answer).choices[0].content == "aa"
    assert [each["choices"][0].get("token_ids") for each in (first, late)] == [None, None]
    assert [each["choices"][0]["logprobs"] for each in (first, late)] == [None, None]
