"""A training request on its way to the art-server: bit for bit, and refused by name where it is broken."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas.errors import RejectedError
from rollbus.trainer.backends.protocol import TrainRequest, TrainTrajectory, TurnTokens
from rollbus.trainer.backends.wire import request_from_bytes, request_to_bytes
from rollbus.trainer.train_config import TrainConfig

SIZED = st.binary(max_size=40)
TURNS = st.builds(
    TurnTokens,
    prompt_token_ids=SIZED,
    completion_token_ids=SIZED,
    logprobs=SIZED,
    policy_version=st.integers(0, 9),
    history=st.integers(0, 3),
    temperature=st.floats(0.1, 2),
    logprob_mode=st.sampled_from(("raw", "processed")),
    advantage=st.none() | st.floats(allow_nan=False, allow_infinity=False),
)
NAMES = st.text(min_size=1, max_size=9)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
TRAJECTORIES = st.builds(
    TrainTrajectory,
    trajectory_id=NAMES,
    group_id=NAMES,
    advantage=FINITE,
    reward=FINITE,
    turns=st.lists(TURNS, max_size=3).map(tuple),
)
REQUESTS = st.builds(
    TrainRequest,
    batch_hash=NAMES,
    run_id=NAMES,
    model=NAMES,
    base_version=st.integers(0, 99),
    trajectories=st.lists(TRAJECTORIES, max_size=4).map(tuple),
    config=st.builds(TrainConfig, learning_rate=st.floats(0, 1, exclude_min=True)),
    serve=st.booleans(),
)
ONE = TrainRequest(
    "hash", "main", "agent", 3, (TrainTrajectory("t", "g", 0.5, 1.0, (TurnTokens(b"\n" * 8, b"1234", b"5678", 2),)),)
)


@given(REQUESTS)
def test_a_request_arrives_as_it_was_sent(request: TrainRequest) -> None:
    assert request_from_bytes(request_to_bytes(request)) == request


def test_the_bytes_of_turns_travel_as_they_are() -> None:
    assert request_to_bytes(ONE).endswith(b"\n" + b"\n" * 8 + b"12345678")


@given(st.integers(0, 400))
def test_a_body_that_was_cut_anywhere_is_refused(length: int) -> None:
    whole = request_to_bytes(ONE)
    with pytest.raises(RejectedError, match="cannot be read"):
        request_from_bytes(whole[: min(length, len(whole) - 1)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"run_id": None}, "run_id: .*string, not None"),
        ({"config": {"learning_rat": 1}}, "config.learning_rat: Extra"),
        ({"config": {"learning_rate": math.nan}}, "config.learning_rate: .* finite"),
        ({"config": {"learning_rate": "fast"}}, "config.learning_rate: .* number"),
        ({"config": {"loss": "reinforce"}}, "config.loss: .* not 'reinforce'"),
        ({"config": {"aggregation": "constant"}}, "config: .*aggregation_tokens"),
        ({"base_version": "new"}, "base_version: .*integer"),
        ({"trajectories": [{"trajectory_id": "t"}]}, "cannot be read: .*'turns'"),
        ({"trajectories": [{"turns": []}]}, "16 bytes at the end belong to no turn"),
        ({"trajectories": []}, "16 bytes at the end belong to no turn"),
    ],
)
def test_a_field_that_is_wrong_is_named(change: dict[str, Any], message: str) -> None:
    line, _, data = request_to_bytes(ONE).partition(b"\n")
    body = json.dumps(json.loads(line) | change).encode() + b"\n" + data
    with pytest.raises(RejectedError, match=message):
        request_from_bytes(body)


def test_an_invalid_length_is_refused() -> None:
    line, _, data = request_to_bytes(ONE).partition(b"\n")
    for lengths in ([8, 4], [-8, 12, 12], ["8", 4, 4], [8.0, 4, 4]):
        head = json.loads(line)
        head["trajectories"][0]["turns"][0]["lengths"] = lengths
        with pytest.raises(RejectedError, match="cannot be read"):
            request_from_bytes(json.dumps(head).encode() + b"\n" + data)
