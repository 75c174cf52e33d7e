"""However a server cuts its stream, the accumulated answer equals the unstreamed one."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollbus.producers.capture.answer_tap import read_stream
from rollbus.producers.capture.chat import CHAT
from rollbus.producers.capture.hidden_fields import make_cut
from rollbus.producers.capture.surface import Wishes
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
        deltas += [{"delta": {"tool_calls": [call]}} for call in calls]
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


@given(streams(), st.booleans(), st.integers(0, 100), st.sampled_from(["\n", "\r\n"]), st.sampled_from([None, 1]))
def test_any_chunking_in_any_pieces_is_read_as_the_unstreamed_answer(
    stream: tuple[Body, list[Body]], hide: bool, cut: int, line_end: str, indent: int | None
) -> None:
    answer, chunks = stream
    whole = read(answer_of(answer))
    events = [f": comment{line_end}data: {json.dumps(item)}{line_end * 2}".encode() for item in chunks]
    data = b"".join([*events, f"data: [DONE]{line_end * 2}".encode()])
    pieces = [data[start : start + cut + 1] for start in range(0, len(data), cut + 1)]
    assert read(read_stream(CHAT, True, pieces)) == whole
    assert not read(read_stream(CHAT, False, events[:cut][:-1])).complete, "a stream cut anywhere still gives an answer"

    visible_text = make_cut(Wishes(hide, hide, hide), b"null")(data).decode()
    texts = [line[len("data:") :] for line in visible_text.splitlines() if line.startswith("data: {")]
    assert [json.loads(text) for text in texts] == (chunks if hide else without_hidden(chunks))
    pretty = json.dumps(answer, indent=indent).encode()
    assert json.loads(make_cut(Wishes(usage=True), b"null")(pretty)) == without_hidden([answer])[0]


def without_hidden(bodies: list[Body]) -> list[Body]:
    """What an application sees of bodies whose tokens it did not ask for."""
    visible_chunks = []
    for body in bodies:
        choices = [{name: value for name, value in choice.items() if name != "token_ids"} for choice in body["choices"]]
        choices = [{**choice, "logprobs": None} if "logprobs" in choice else choice for choice in choices]
        rest = {name: value for name, value in body.items() if name != "prompt_token_ids"}
        if choices or not body.get("usage"):
            visible_chunks.append({**rest, "choices": choices})
    return visible_chunks


def test_a_text_that_looks_like_what_is_hidden_stays() -> None:
    text = '{"logprobs": [1], "token_ids": [2], "x": "token_ids", "choices":[], "usage":{}}, \\"token_ids\\": [1]'
    body = {"token_ids": [1], "choices": [{"message": {"content": text}, "token_ids": None}], "prompt_token_ids": []}
    assert json.loads(make_cut(Wishes(usage=True), b"null")(json.dumps(body).encode())) == {
        "choices": [{"message": {"content": text}}]
    }


def test_prompt_ids_in_each_chunk_are_hidden_with_the_answers_ids() -> None:
    cut = make_cut(Wishes(logprobs=True, usage=True), b"null")
    chunks: list[Body] = [
        {"id": "r", "prompt_token_ids": [4, 5], "choices": [{"index": 0, "delta": {"content": text}, "token_ids": [7]}]}
        for text in ("one", "token_ids", '"token_ids": [1]', "four")
    ]
    asked_chunk: Body = {"id": "r", "choices": [{"index": 0, "delta": {"content": "last"}, "token_ids": [8]}]}
    for item in (asked_chunk, *chunks, asked_chunk):
        visible_text = cut(f"data: {json.dumps(item)}\n\n".encode()).decode()
        text = item["choices"][0]["delta"]["content"]
        expected = {"id": "r", "choices": [{"index": 0, "delta": {"content": text}}]}
        assert json.loads(visible_text.removeprefix("data: ")) == expected
