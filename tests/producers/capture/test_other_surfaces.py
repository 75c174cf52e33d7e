"""The older completions and the Responses API through the real client: recorded as far as they give tokens."""

from typing import Any

import pytest
from openai.types.responses import Response

from rollbus.producers import MemorySink, Recorder
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids
from tests.producers.openai_server import Body, Server
from tests.producers.recorded_events import turns

VALUES = [-0.5, -0.25]


def completion(choices: int = 1, *, texts: tuple[str, ...] = ("Hello", " there"), usage: bool = True) -> Body:
    """A completion of the older API, as vLLM gives it when asked for token ids."""
    logprobs = {
        "tokens": list(texts),
        "token_logprobs": VALUES[: len(texts)],
        "top_logprobs": None,
        "text_offset": [0, 5],
    }
    choice = {
        "text": "".join(texts),
        "logprobs": logprobs,
        "finish_reason": "stop",
        "token_ids": [10, 20][: len(texts)],
    }
    body: Body = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "agent@3"}
    body["choices"] = [{"index": index, "prompt_token_ids": [1, 2, 3], **choice} for index in range(choices)]
    if usage:
        body["usage"] = {"prompt_tokens": 3, "completion_tokens": 2 * choices, "total_tokens": 5}
    return body


def pieces() -> list[Body]:
    """The same completion in chunks."""
    first = completion(texts=("Hello",), usage=False)
    second = completion(texts=(" there",), usage=False)
    first["choices"][0]["finish_reason"] = None
    second["choices"][0] |= {"token_ids": [20], "prompt_token_ids": None}
    second["choices"][0]["logprobs"]["token_logprobs"] = [-0.25]
    return [first, second, {**completion(), "choices": []}]


def response(*, logprobs: bool = True, status: str = "completed", tools: bool = False) -> Body:
    """An answer of the Responses API; tokens are written with their ids, as vLLM can."""
    entries = [
        {"token": f"token_id:{token_id}", "logprob": value, "bytes": [], "top_logprobs": []}
        for token_id, value in zip([10, 20], VALUES, strict=True)
    ]
    text = {"type": "output_text", "text": "Hello there", "annotations": [], "logprobs": entries if logprobs else []}
    output: list[Body] = [
        {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [text]}
    ]
    if tools:
        call = {"type": "function_call", "id": "f1", "call_id": "call-1", "name": "stock", "arguments": "{}"}
        output.append({**call, "status": "completed"})
    return {
        "id": "resp-1",
        "object": "response",
        "created_at": 1,
        "model": "agent@3",
        "status": status,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "usage": {
            "input_tokens": 3,
            "output_tokens": 2,
            "total_tokens": 5,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def events() -> list[Body]:
    """The same answer as typed events."""
    place = {"item_id": "m1", "output_index": 0, "content_index": 0}
    entry = {"token": "token_id:10", "logprob": -0.5, "bytes": [], "top_logprobs": []}
    return [
        {
            "type": "response.created",
            "sequence_number": 0,
            "response": {**response(status="in_progress"), "output": []},
        },
        {"type": "response.output_text.delta", "sequence_number": 1, "delta": "Hello", "logprobs": [entry], **place},
        {"type": "response.completed", "sequence_number": 2, "response": response()},
    ]


def logprobs_of(answer: Response) -> list[Any]:
    """The log-probs that the application sees."""
    message: Any = answer.output[0]
    return list(message.content[0].logprobs)


class TestCompletions:
    """`client.completions.create`."""

    @pytest.mark.parametrize("streamed", [False, True])
    def test_a_call_is_recorded_token_exact_and_looks_untouched(
        self, recorder: Recorder, sink: MemorySink, streamed: bool
    ) -> None:
        server = Server(lambda body: pieces() if body.get("stream") else completion())
        client = recorder.wrap(server.client())
        with recorder.episode(task="greet"):
            if streamed:
                chunks = list(client.completions.create(model="agent", prompt="Say", stream=True))
                answers: list[Any] = [*chunks]
                assert all(chunk.usage is None for chunk in chunks)
            else:
                answers = [client.completions.create(model="agent", prompt="Say", temperature=0.5)]
        for answer in answers:
            assert [choice.logprobs for choice in answer.choices] == [None]
            assert "token_ids" not in (answer.choices[0].model_extra or {})
        (turn,) = turns(recorder, sink)
        assert turn.trainable, turn.untrainable_reason
        assert list(decode_token_ids(turn.prompt_token_ids or b"")) == [1, 2, 3]
        assert list(decode_token_ids(turn.completion_token_ids or b"")) == [10, 20]
        assert list(decode_logprobs(turn.logprobs or b"")) == VALUES
        assert (turn.completion.content, turn.streamed, turn.policy_version) == ("Hello there", streamed, 3)
        assert [(added_message.role, added_message.content) for added_message in turn.added_messages] == [
            ("user", "Say")
        ]

    @pytest.mark.parametrize(
        "part", [{"type": "output_text", "text": None, "annotations": []}, {"type": "refusal", "refusal": None}]
    )
    def test_a_part_without_text_takes_no_answer_away(
        self, recorder: Recorder, sink: MemorySink, part: dict[str, Any]
    ) -> None:
        answer = response()
        answer["output"][0]["content"].append(part)
        answer["output"].append({"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": None}]})
        with recorder.episode(task="greet"):
            recorder.wrap(Server(lambda body: answer).client()).responses.create(model="agent", input="Say")
        (turn,) = turns(recorder, sink)
        assert (turn.completion.content, turn.completion.parts, turn.completion.reasoning) == (
            "Hello there",
            None,
            None,
        )

    def test_the_application_gets_the_log_probs_that_it_requested(self, recorder: Recorder) -> None:
        server = Server(lambda body: completion())
        with recorder.episode(task="greet"):
            answer = recorder.wrap(server.client()).completions.create(model="agent", prompt=[1, 2, 3], logprobs=3)
        assert server.requests[0]["logprobs"] == 3
        assert answer.choices[0].logprobs is not None

    def test_every_choice_is_a_turn(self, recorder: Recorder, sink: MemorySink) -> None:
        server = Server(lambda body: completion(choices=2))
        with recorder.episode(task="greet"):
            recorder.wrap(server.client()).completions.create(model="agent", prompt="Say", n=2)
        assert [(turn.choice, turn.trainable) for turn in turns(recorder, sink)] == [(0, True), (1, True)]

    def test_an_echo_is_not_trainable(self, recorder: Recorder, sink: MemorySink) -> None:
        with recorder.episode(task="greet"):
            recorder.wrap(Server(lambda body: completion()).client()).completions.create(
                model="agent", prompt="Say", echo=True
            )
        assert [turn.untrainable_reason for turn in turns(recorder, sink)] == ["echo"]

    def test_several_prompts_pass_unchanged_and_leave_a_turn_with_its_reason(
        self, recorder: Recorder, sink: MemorySink
    ) -> None:
        server = Server(lambda body: completion(choices=2))
        with recorder.episode(task="greet"):
            recorder.wrap(server.client()).completions.create(model="agent", prompt=["a", "b"])
        assert "logprobs" not in server.requests[0]
        assert recorder.counters["calls_unobserved"] == 1
        assert [turn.untrainable_reason for turn in turns(recorder, sink)] == ["not_captured"]


class TestResponses:
    """`client.responses.create`, `parse` and `stream`."""

    def test_a_call_is_recorded_and_looks_untouched(self, recorder: Recorder, sink: MemorySink) -> None:
        server = Server(lambda body: response(tools=True))
        client = recorder.wrap(server.client())
        history: Any = [
            {"type": None, "role": "user", "content": "Count"},
            {"type": "function_call", "call_id": "c0", "name": "stock", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c0", "output": "7"},
        ]
        with recorder.episode(task="greet"):
            answer = client.responses.create(
                model="agent",
                instructions="Be brief",
                input=history,
                max_output_tokens=9,
                temperature=0.5,
                previous_response_id="resp-0",
            )
        assert isinstance(answer, Response)
        assert server.requests[0]["include"] == ["message.output_text.logprobs"]
        assert logprobs_of(answer) == []
        (turn,) = turns(recorder, sink)
        roles = [message.role for message in turn.added_messages]
        assert roles == ["previous_response_id", "system", "user", "assistant", "tool"]
        assert turn.added_messages[0].content == "resp-0"
        assert (turn.completion.content, turn.finish_reason, turn.response_id) == (
            "Hello there",
            "tool_calls",
            "resp-1",
        )
        assert '"name":"stock"' in (turn.completion.tool_calls or "")
        assert (turn.max_tokens, turn.temperature, turn.completion_tokens) == (9, 0.5, 2)
        assert list(decode_token_ids(turn.completion_token_ids or b"")) == [10, 20]
        assert turn.untrainable_reason == "no_prompt_token_ids"

    @pytest.mark.parametrize("whole", [True, False])
    def test_a_stream_is_recorded_as_far_as_it_is_read(self, recorder: Recorder, sink: MemorySink, whole: bool) -> None:
        server = Server(lambda body: events())
        with recorder.episode(task="greet"):
            for event in recorder.wrap(server.client()).responses.create(model="agent", input="Say", stream=True):
                assert not getattr(event, "logprobs", None)
                if not whole and event.type == "response.output_text.delta":
                    break
        (turn,) = turns(recorder, sink)
        assert turn.completion.content == ("Hello there" if whole else "Hello")
        assert turn.untrainable_reason == ("no_prompt_token_ids" if whole else "truncated_stream")
        assert (turn.model, turn.response_id, turn.streamed) == ("agent@3", "resp-1", True)

    def test_a_stream_from_the_stream_helper_is_recorded(self, recorder: Recorder, sink: MemorySink) -> None:
        server = Server(lambda body: events()[:1] + events()[2:])
        with (
            recorder.episode(task="greet"),
            recorder.wrap(server.client()).responses.stream(model="agent", input="Say") as stream,
        ):
            assert stream.get_final_response().output_text == "Hello there"
        assert [turn.completion.content for turn in turns(recorder, sink)] == ["Hello there"]

    async def test_an_asynchronous_call_that_was_cut_off_has_a_reason(
        self, recorder: Recorder, sink: MemorySink
    ) -> None:
        server = Server(lambda body: response(status="incomplete"))
        async with recorder.episode(task="greet"):
            await recorder.wrap(server.async_client()).responses.create(model="agent", input="Say")
        assert [turn.finish_reason for turn in turns(recorder, sink)] == ["length"]

    def test_the_application_gets_the_log_probs_that_it_requested(self, recorder: Recorder) -> None:
        server = Server(lambda body: response())
        with recorder.episode(task="greet"):
            answer = recorder.wrap(server.client()).responses.create(
                model="agent", input="Say", include=["message.output_text.logprobs"]
            )
        assert len(logprobs_of(answer)) == 2
