"""OpenAI's chat lines and batches to events."""

from typing import Any

import pytest

from rollbus.producers.imports.formats.trace import ForeignDocumentError
from tests.producers.imports.formats.reading import Read

CHAT = {
    "messages": [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "bye"},
        {"role": "assistant", "content": "ciao", "weight": 0},
    ],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "metadata": {"user": "ann"},
    "read_at": 1_700_000_000_000,
}


def request(custom_id: str, text: str, **options: Any) -> dict[str, Any]:
    body = {"model": "agent", "messages": [{"role": "user", "content": text}], "temperature": 0.3, **options}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body, "read_at": 5}


def answer(custom_id: str, text: str, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}, **more}
    body = {"id": f"r-{text}", "object": "chat.completion", "created": 1_700_000_000, "model": "agent@3",
            "choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}  # fmt: skip
    response = {"status_code": 200, "request_id": "q", "body": body}
    return {"id": f"b-{text}", "custom_id": custom_id, "response": response, "error": None, "read_at": 5}


def test_each_answer_of_a_conversation_is_a_turn() -> None:
    episode = Read("openai-chat", [CHAT], task="support")
    assert episode.texts() == [(["system", "user"], "hello"), (["user"], "ciao")]
    assert (episode.started.task, episode.started.labels["user"]) == ("support", "ann")
    assert episode.turns[0].tools is not None
    assert episode.turns[1].tools is None
    assert episode.started.occurred_at_ms == 1_700_000_000_000


def test_a_line_is_the_same_episode_whenever_its_file_was_written() -> None:
    later = Read("openai-chat", [{**CHAT, "read_at": 1_800_000_000_000}])
    assert later.started.episode_id == Read("openai-chat", [CHAT]).started.episode_id


def test_a_batch_joins_its_input_and_output() -> None:
    episode = Read("openai-batch", [answer("1", "four"), request("1", "2+2?")])
    (turn,) = episode.turns
    assert ([added_message.content for added_message in turn.added_messages], turn.completion.content) == (
        ["2+2?"],
        "four",
    )
    assert (turn.temperature, turn.policy_version, turn.response_id) == (0.3, 3, "r-four")
    assert turn.occurred_at_ms == 1_700_000_000_000
    assert episode.started.labels["custom_id"] == "1"


def test_a_batch_with_token_ids_is_trainable() -> None:
    logprobs = {"content": [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -0.2}]}
    answer_row = answer("1", "four", logprobs=logprobs, token_ids=[7, 8], prompt_token_ids=[1, 2, 3])
    sampling = {"top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1, "presence_penalty": 0}
    (turn,) = Read("openai-batch", [answer_row, request("1", "2+2?", **sampling)]).turns
    assert turn.untrainable_reason == "sampling_unknown"
    (turn,) = Read("openai-batch", [answer_row, request("1", "2+2?", **sampling, frequency_penalty=0)]).turns
    assert turn.trainable


def test_a_custom_id_of_two_batches_is_refused() -> None:
    rows = [request("1", "2+2?"), request("1", "3+3?"), answer("1", "four")]
    with pytest.raises(ForeignDocumentError, match="import each batch by itself"):
        Read("openai-batch", rows)


def test_two_batches_that_use_the_same_custom_id_are_two_episodes() -> None:
    rows_of_sum, rows_of_other_sum = (
        [request("1", question), answer("1", reply)] for question, reply in (("2+2?", "four"), ("3+3?", "six"))
    )
    ids = {Read("openai-batch", rows).started.episode_id for rows in (rows_of_sum, rows_of_other_sum)}
    assert len(ids) == 2


def test_a_failed_request_without_a_message_names_its_code() -> None:
    error = {"id": "b", "custom_id": "1", "response": None, "error": {"code": "batch_expired"}, "read_at": 5}
    episode = Read("openai-batch", [request("1", "2+2?"), error])
    assert (episode.turns[0].untrainable_reason, episode.ended.error) == ("failed_call", '{"code":"batch_expired"}')


def test_a_failed_request_differs_from_one_without_an_answer() -> None:
    error = {"id": "b", "custom_id": "1", "response": None, "error": {"message": "expired"}, "read_at": 5}
    episode = Read("openai-batch", [request("1", "2+2?"), error, request("2", "3+3?")])
    assert (episode.turns[0].untrainable_reason, episode.ended.error) == ("failed_call", "expired")
    assert episode.unmapped["openai-batch.request without an answer"] == 1
