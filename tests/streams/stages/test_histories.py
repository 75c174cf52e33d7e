"""Tokens are facts: turns are joined only where one prompt extends the other's tokens exactly."""

import math
from array import array
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas.records.events import TurnRecorded
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids
from rollbus.streams.stages.assembly.histories import merge, token_problem
from tests.builders import make_turn

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=3)


def merge_turns(*turns: TurnRecorded) -> list[tuple[list[int], list[tuple[int, int, int]]]]:
    return [
        (list(decode_token_ids(history.token_ids)), [(span.start, span.end, span.turn) for span in history.spans])
        for history in merge(enumerate(turns))
    ]


def test_a_prompt_that_extends_the_tokens_before_is_appended() -> None:
    first = make_turn(prompt=[1, 2], completion=[3])
    second = make_turn(prompt=[1, 2, 3, 9], completion=[4, 5])
    assert merge_turns(first, second) == [([1, 2, 3, 9, 4, 5], [(2, 3, 0), (4, 6, 1)])]


def test_another_prompt_starts_a_history_of_its_own() -> None:
    first = make_turn(prompt=[1, 2], completion=[3])
    edited = make_turn(prompt=[1, 2, 8, 9], completion=[4])
    assert merge_turns(first, edited) == [([1, 2, 3], [(2, 3, 0)]), ([1, 2, 8, 9, 4], [(4, 5, 1)])]


def test_choices_of_one_request_are_histories_beside_each_other() -> None:
    choices = [make_turn(prompt=[1], completion=[token], choice=token) for token in (2, 3)]
    follow_up = make_turn(prompt=[1, 3, 4], completion=[5])
    assert merge_turns(*choices, follow_up) == [([1, 2], [(1, 2, 0)]), ([1, 3, 4, 5], [(1, 2, 1), (3, 4, 2)])]


def test_the_longest_history_is_extended() -> None:
    turns = [make_turn(prompt=[1], completion=[2]), make_turn(prompt=[1], completion=[2])]
    longer = make_turn(prompt=[1, 2, 3], completion=[4])
    last = make_turn(prompt=[1, 2, 3, 4, 5], completion=[6])
    assert merge_turns(*turns, longer, last)[0] == ([1, 2, 3, 4, 5, 6], [(1, 2, 0), (3, 4, 2), (5, 6, 3)])


def test_a_token_boundary_is_never_crossed() -> None:
    first = make_turn(prompt=[1], completion=[2])
    assert len(merge_turns(first, make_turn(prompt=[1, 2 + 256], completion=[3]))) == 2


@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=6))
def test_every_turn_is_in_one_history_after_its_whole_prompt(turns: list[tuple[list[int], list[int]]]) -> None:
    records = [make_turn(prompt=prompt, completion=completion) for prompt, completion in turns]
    tokens_by_turn = {}
    for history in merge(enumerate(records)):
        tokens = list(decode_token_ids(history.token_ids))
        assert len(decode_logprobs(history.logprobs)) == sum(span.end - span.start for span in history.spans)
        for span in history.spans:
            tokens_by_turn[span.turn] = (tokens[: span.start], tokens[span.start : span.end])
    assert tokens_by_turn == dict(enumerate(turns))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, None),
        ({"policy_version": None}, "no_policy_version"),
        ({"trainable": False, "untrainable_reason": "no_logprobs"}, "no_logprobs"),
        ({"logprobs": array("f", [-0.1, -9999.0]).tobytes()}, "invalid_logprobs"),
        ({"prompt_token_ids": b"\x01\x00\x00"}, "invalid_token_ids"),
        ({"prompt_token_ids": b"\xff\xff\xff\xff"}, "invalid_token_ids"),
        ({"logprobs": array("f", [math.nan, -0.1]).tobytes()}, "invalid_logprobs"),
        ({"logprobs": array("f", [0.5, -0.1]).tobytes()}, "invalid_logprobs"),
    ],
)
def test_tokens_that_cannot_be_trained_are_named(fields: dict[str, Any], problem: str | None) -> None:
    assert token_problem(replace(make_turn(), **fields)) == problem


LOGPROBS = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1e-45, -8191.9, -8192.0, -9998.9, -9999.0, -math.inf])


@given(st.lists(LOGPROBS, min_size=1, max_size=5))
def test_packed_logprobs_are_refused_exactly_if_a_value_is_invalid(values: list[float]) -> None:
    packed = array("f", values)
    real = all(math.isfinite(value) and -9999.0 < value <= 0 for value in packed) and math.isfinite(sum(packed))
    turn = replace(make_turn(completion=[1] * len(values)), logprobs=packed.tobytes())
    assert token_problem(turn) == (None if real else "invalid_logprobs")
