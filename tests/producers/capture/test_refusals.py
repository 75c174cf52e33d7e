"""Servers that refuse what is asked for besides: each refused parameter is left out, the others are still asked for."""

from typing import Any

import httpx
import openai
import pytest

from rollbus.producers import MemorySink, Recorder
from rollbus.producers.turns.sampling_settings import NEUTRAL, STANDARD
from rollbus.schemas.records.tokens import decode_logprobs
from tests.producers.capture.test_openai_client import HELLO
from tests.producers.openai_server import Body, Server, completion, streamed
from tests.producers.recorded_events import turns

MESSAGES = {
    "logprobs": "logprobs is not supported with tools + stream",
    "return_token_ids": "Unrecognized request argument supplied: return_token_ids",
    "stream_options": "Stream options are not supported: stream_options",
}


NOT_ALLOWED = "You are not allowed to request logprobs from this model"
"""OpenAI's message, of its newer models."""


def refusing(*names: str, status: int = 400, message: str | None = None) -> Server:
    """A server that refuses the first of these that a request has, and gives what the request asks for."""

    def script(request: Body) -> Any:
        for name in names:
            if name in request:
                return httpx.Response(status, json={"error": {"message": message or MESSAGES[name]}})
        if request.get("stream"):
            return streamed() if "stream_options" in request else streamed()[:-1]
        answer = completion()
        for name, field in (("logprobs", "logprobs"), ("return_token_ids", "token_ids")):
            if name not in request:
                answer["choices"][0][field] = None
        return answer

    return Server(script)


def extras_of_requests(server: Server) -> list[set[str]]:
    """What each request asked for besides."""
    return [set(request) & set(MESSAGES) for request in server.requests]


@pytest.mark.parametrize("status", [400, 422])
def test_a_refusal_of_token_ids_alone_leaves_the_log_probs(recorder: Recorder, sink: MemorySink, status: int) -> None:
    server = refusing("return_token_ids", status=status)
    client = recorder.wrap(server.client())
    with recorder.episode(task="t"):
        for _ in range(2):
            answer = client.chat.completions.create(model="agent", messages=HELLO)
            assert answer.choices[0].logprobs is None, "what the application did not ask for is still hidden"
    assert extras_of_requests(server) == [{"logprobs", "return_token_ids"}, {"logprobs"}, {"logprobs"}]
    for turn in turns(recorder, sink):
        assert turn.untrainable_reason == "no_token_ids"
        assert list(decode_logprobs(turn.logprobs or b"")) == [-0.5, -0.25]
    assert recorder.counters["token_ids_refused"] == 1
    assert "logprobs_refused" not in recorder.counters


@pytest.mark.parametrize(("status", "message"), [(400, None), (403, NOT_ALLOWED)])
def test_a_refusal_of_log_probs_alone_leaves_the_token_ids(
    recorder: Recorder, sink: MemorySink, status: int, message: str | None
) -> None:
    server = refusing("logprobs", status=status, message=message)
    client = recorder.wrap(server.client())
    with recorder.episode(task="t"):
        for _ in range(2):
            client.chat.completions.create(model="agent", messages=HELLO)
    assert extras_of_requests(server) == [{"logprobs", "return_token_ids"}, {"return_token_ids"}, {"return_token_ids"}]
    for turn in turns(recorder, sink):
        assert (turn.untrainable_reason, turn.completion_token_ids is None) == ("logprobs_refused", False)


def test_parameters_refused_one_after_the_other_are_each_learnt(recorder: Recorder, sink: MemorySink) -> None:
    server = refusing("logprobs", "stream_options", "return_token_ids")
    client = recorder.wrap(server.client())
    with recorder.episode(task="t"):
        for _ in range(2):
            list(client.chat.completions.create(model="agent", messages=HELLO, stream=True))
    assert [len(extras) for extras in extras_of_requests(server)] == [3, 2, 1, 0, 0]
    assert len(turns(recorder, sink)) == 2


def test_a_refusal_to_one_model_is_not_remembered_for_another(recorder: Recorder, sink: MemorySink) -> None:
    server = refusing("return_token_ids")
    client = recorder.wrap(server.client())
    with recorder.episode(task="t"):
        client.chat.completions.create(model="agent", messages=HELLO)
        client.chat.completions.create(model="other", messages=HELLO)
    assert [len(extras) for extras in extras_of_requests(server)] == [2, 1, 2, 1]


def test_a_refusal_that_names_no_parameter_drops_all_added_ones(recorder: Recorder, sink: MemorySink) -> None:
    server = refusing("logprobs", "return_token_ids", status=422, message="Extra inputs are not permitted")
    client = recorder.wrap(server.client())
    with recorder.episode(task="t"):
        client.chat.completions.create(model="agent", messages=HELLO)
    assert extras_of_requests(server) == [{"logprobs", "return_token_ids"}, set()]
    assert [turn.untrainable_reason for turn in turns(recorder, sink)] == ["logprobs_refused"]


def test_the_application_sees_the_refusal_of_its_own_fields(recorder: Recorder, sink: MemorySink) -> None:
    server = refusing("logprobs")
    client = recorder.wrap(server.client())
    with recorder.episode(task="t"), pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="agent", messages=HELLO, logprobs=True)
    assert all("logprobs" in request for request in server.requests)


def test_an_error_that_names_no_added_parameter_is_not_tried_again(recorder: Recorder) -> None:
    server = Server(lambda request: httpx.Response(403, json={"error": {"message": "Unknown project"}}))
    client = recorder.wrap(server.client())
    with recorder.episode(task="t"), pytest.raises(openai.PermissionDeniedError):
        client.chat.completions.create(model="agent", messages=HELLO)
    assert len(server.requests) == 1


def test_a_refusal_for_another_reason_is_not_remembered(recorder: Recorder, sink: MemorySink) -> None:
    def script(request: Body) -> Any:
        if request.get("temperature", 0) < 0:  # as vLLM says it: with all of the request's body
            problem = {"loc": ["body"], "msg": "temperature must be non-negative", "input": request}
            return httpx.Response(400, json={"error": {"message": f"{[problem]}", "code": 400}})
        return completion()

    server = Server(script)
    client = recorder.wrap(server.client())
    with recorder.episode(task="t"):
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="agent", messages=HELLO, temperature=-1)
        client.chat.completions.create(model="agent", messages=HELLO)
    assert extras_of_requests(server)[-1] == {"logprobs", "return_token_ids"}
    assert [turn.untrainable_reason for turn in turns(recorder, sink)] == ["call_failed", None]
    assert "logprobs_refused" not in recorder.counters


def test_turns_of_a_server_that_refuses_sampling_settings_are_untrainable(recorder: Recorder, sink: MemorySink) -> None:
    def script(request: Body) -> Any:
        if "top_k" in request:
            return httpx.Response(400, json={"error": {"message": "Unrecognized request argument supplied: top_k"}})
        return completion()

    server = Server(script)
    client = recorder.wrap(server.client())
    with recorder.episode(task="t"):
        for _ in range(2):
            client.chat.completions.create(model="agent", messages=HELLO)
    settings = [set(request) & set(NEUTRAL) for request in server.requests]
    assert settings == [set(NEUTRAL), set(STANDARD), set(STANDARD)]
    assert [turn.untrainable_reason for turn in turns(recorder, sink)] == ["sampling_refused"] * 2
    assert recorder.counters["sampling_extensions_refused"] == 1


@pytest.mark.parametrize(
    "constraint",
    [
        {"response_format": {"type": "json_object"}},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "look"}}},
        {"logit_bias": {"7": 5}},
        {"extra_body": {"structured_outputs": {"choice": ["yes", "no"]}}},
        {"extra_body": {"bad_words": ["no"]}},
    ],
    ids=lambda constraint: str(constraint),
)
def test_tokens_among_which_a_grammar_or_a_bias_chose_are_not_trained(
    recorder: Recorder, sink: MemorySink, server: Server, constraint: dict[str, Any]
) -> None:
    client = recorder.wrap(server.client())
    with recorder.episode(task="t"):
        client.chat.completions.create(model="agent", messages=HELLO, **constraint)
        client.chat.completions.create(
            model="agent", messages=HELLO, response_format={"type": "text"}, tool_choice="auto", logit_bias={}
        )
    assert [turn.untrainable_reason for turn in turns(recorder, sink)] == ["sampling_constrained", None]


@pytest.mark.parametrize(
    ("options", "reason"), [({}, "sampling_unknown"), ({**NEUTRAL, "top_k": 40}, None)], ids=["left out", "named"]
)
def test_a_turn_with_unknown_sampling_settings_is_untrainable(
    recorder: Recorder, sink: MemorySink, server: Server, options: dict[str, Any], reason: str | None
) -> None:
    client = recorder.wrap(server.client(), logprobs="passive")
    with recorder.episode(task="t"):
        client.chat.completions.create(model="agent", messages=HELLO, extra_body=options)
    (turn,) = turns(recorder, sink)
    assert turn.untrainable_reason == reason
    assert "temperature" not in server.requests[0] or options


def test_an_untrainable_agent_gets_one_notice(
    recorder: Recorder, sink: MemorySink, caplog: pytest.LogCaptureFixture
) -> None:
    client = recorder.wrap(refusing("return_token_ids").client())
    with recorder.episode(task="t"):
        for _ in range(7):
            client.chat.completions.create(model="agent", messages=HELLO)
    assert len(turns(recorder, sink)) == 7
    (line,) = (record.getMessage() for record in caplog.records if record.name.startswith("rollbus"))
    assert line == (
        "rollbus: none of the first 5 turns can be trained: no_token_ids (5 of them, server http://server/v1/); "
        "serve the model with an endpoint that returns token ids and log-probs: rollbus' own or vLLM"
    )


def test_one_trainable_turn_prevents_the_notice(
    recorder: Recorder, sink: MemorySink, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    client, poor = recorder.wrap(server.client()), recorder.wrap(refusing("return_token_ids").client())
    with recorder.episode(task="t"):
        for recorded_client in (poor, client, *[poor] * 6):
            recorded_client.chat.completions.create(model="agent", messages=HELLO)
    assert len(turns(recorder, sink)) == 8
    recorder.close(120)
    assert not [record for record in caplog.records if record.name.startswith("rollbus")]
