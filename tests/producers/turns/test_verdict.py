"""A turn is trainable only where everything about its tokens agrees; otherwise it says why not."""

from typing import Any

import pytest

from rollbus.producers.turns.answer import AnswerChoice, token_ids_of
from rollbus.producers.turns.turn_record import policy_version_of
from rollbus.producers.turns.verdict import judge

WHOLE: dict[str, Any] = {
    "prompt_token_ids": [1, 2],
    "token_ids": [3, 4],
    "logprobs": [-0.1, -0.2],
    "sampled_tokens": 2,
    "completion_tokens": 2,
    "complete": True,
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"logprobs": [0.0, 1e-6]}, None),
        ({"logprobs": None}, "no_logprobs"),
        ({"logprobs": []}, "no_logprobs"),
        ({"logprobs": [-0.1, None]}, "missing_logprobs"),
        ({"logprobs": [-0.1, float("nan")]}, "missing_logprobs"),
        ({"logprobs": [-0.1, -9999.0]}, "missing_logprobs"),
        ({"logprobs": [-0.1, float("-inf")]}, "missing_logprobs"),
        ({"logprobs": [-0.1, 0.5]}, "missing_logprobs"),
        ({"logprobs": [-0.1, -(10**400)]}, "missing_logprobs"),
        ({"token_ids": None}, "no_token_ids"),
        ({"prompt_token_ids": None}, "no_prompt_token_ids"),
        ({"token_ids": [3]}, "length_mismatch"),
        ({"completion_tokens": 3}, "length_mismatch"),
        ({"sampled_tokens": 5}, "length_mismatch"),
        ({"completion_tokens": None}, "no_usage"),
        ({"complete": False}, "truncated_stream"),
        ({"withheld": "masked_text"}, "masked_text"),
    ],
)
def test_a_turn_is_judged_by_its_tokens(change: dict[str, Any], reason: str | None) -> None:
    assert judge(**{**WHOLE, **change}) == reason


@pytest.mark.parametrize(
    ("choice", "ids"),
    [
        (AnswerChoice(tokens=("token_id:1", "token_id:2147483648")), None),
        (AnswerChoice(tokens=("token_id:" + "9" * 5000,)), None),
        (AnswerChoice(token_ids=(7, 8), tokens=("token_id:1", "token_id:2")), (7, 8)),
        (AnswerChoice(tokens=("token_id:1", "token_id:20")), (1, 20)),
        (AnswerChoice(tokens=("token_id:1", " there")), None),
        (AnswerChoice(tokens=("token_id:x",)), None),
        (AnswerChoice(), None),
    ],
)
def test_token_ids_come_from_their_field_or_from_token_strings(
    choice: AnswerChoice, ids: tuple[int, ...] | None
) -> None:
    assert token_ids_of(choice) == ids


@pytest.mark.parametrize(
    ("model", "version"),
    [("agent@12", 12), ("org/agent@step3", 3), ("agent", None), ("agent@latest", None), ("", None)],
)
def test_the_policy_version_is_read_from_the_model_name(model: str, version: int | None) -> None:
    assert policy_version_of(model) == version
