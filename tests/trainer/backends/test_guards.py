import math
from array import array
from dataclasses import replace
from typing import Any

import pytest

from rollbus.schemas.records.tokens import encode_token_ids
from rollbus.trainer.backends.admission import Limits, admit
from rollbus.trainer.backends.protocol import TrainRequest, TrainTrajectory, TurnTokens
from rollbus.trainer.train_config import TrainConfig

LIMITS = Limits(max_tokens=8, vocabulary=100, lineage=frozenset({0, 2}))


def floats(*values: float) -> bytes:
    return array("f", values).tobytes()


def turn(**changed: Any) -> TurnTokens:
    plain = TurnTokens(encode_token_ids([1, 2, 3]), encode_token_ids([4, 5]), floats(-0.5, -0.25), policy_version=0)
    return replace(plain, **changed)


def trajectory(name: str, reward: float, *turns: TurnTokens, group: str = "g", **changed: Any) -> TrainTrajectory:
    plain = TrainTrajectory(name, group, advantage=reward - 0.5, reward=reward, turns=turns or (turn(),))
    return replace(plain, **changed)


def request(*trajectories: TrainTrajectory) -> TrainRequest:
    return TrainRequest("hash", "run", "agent", 0, trajectories)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"turns": ()}, "no_turns"),
        ({"reward": math.nan}, "rejected_by_backend"),
        ({"advantage": math.inf}, "rejected_by_backend"),
        ({"turns": (turn(logprobs=floats(-0.5)),)}, "untrainable"),
        ({"turns": (turn(logprobs=floats(-0.5, math.nan)),)}, "untrainable"),
        ({"turns": (turn(logprobs=floats(-0.5, -math.inf)),)}, "untrainable"),
        ({"turns": (turn(logprobs=floats(-0.5, 0.1)),)}, "untrainable"),
        ({"turns": (turn(completion_token_ids=b"", logprobs=b""),)}, "untrainable"),
        ({"turns": (turn(prompt_token_ids=b""),)}, "untrainable"),
        ({"turns": (turn(prompt_token_ids=b"\x01\x02"),)}, "untrainable"),
        ({"turns": (turn(completion_token_ids=encode_token_ids([4, 100])),)}, "untrainable"),
        ({"turns": (turn(prompt_token_ids=encode_token_ids([1] * 7)),)}, "overlong"),
        ({"turns": (turn(), turn(policy_version=1))}, "off_lineage"),
        ({"turns": (turn(temperature=0.7),)}, "temperature"),
        ({"turns": (turn(temperature=0.0, logprob_mode="processed"),)}, "temperature"),
        ({"turns": (turn(temperature=1e-30, logprob_mode="processed"),)}, "temperature"),
    ],
)
def test_a_bad_member_is_dropped_with_its_reason(bad: dict[str, Any], reason: str) -> None:
    members = (trajectory("a", 1.0), trajectory("b", 0.0), replace(trajectory("c", 0.2), **bad))
    admitted = admit(request(*members), LIMITS)
    assert [trajectory.trajectory_id for trajectory in admitted.trajectories] == ["a", "b"]
    assert admitted.dropped == {"c": reason}


@pytest.mark.parametrize("rewards", [(0.1, 0.1, 0.1 + 1e-12), (0.7, 0.7, 0.7), (1e6, 1e6 + 1e-5, 1e6)])
def test_a_group_whose_rewards_differ_by_rounding_has_no_signal(rewards: tuple[float, ...]) -> None:
    members = [trajectory(str(i), reward, advantage=(-1) ** i * 1e-11) for i, reward in enumerate(rewards)]
    admitted = admit(request(*members, trajectory("x", 1.0, group="h"), trajectory("y", 0.0, group="h")), LIMITS)
    assert [trajectory.trajectory_id for trajectory in admitted.trajectories] == ["x", "y"]
    assert set(admitted.dropped.values()) == {"no_signal"}


def test_equal_rewards_with_the_advantages_of_rounding_have_no_signal() -> None:
    members = [trajectory(str(i), 0.1, advantage=(-1.0) ** i) for i in range(4)]
    assert set(admit(request(*members), LIMITS).dropped.values()) == {"no_signal"}


def test_the_losers_of_a_group_train_when_its_winner_was_dropped() -> None:
    losers = [trajectory(str(i), 0.0, advantage=-0.25) for i in range(3)]
    winner = replace(trajectory("w", 1.0, advantage=0.75), turns=())
    admitted = admit(request(winner, *losers), LIMITS)
    assert [trajectory.trajectory_id for trajectory in admitted.trajectories] == ["0", "1", "2"]


def test_equal_rewards_have_no_signal_if_art_computes_advantages() -> None:
    members = [trajectory(str(i), 0.1, advantage=0.5) for i in range(3)]
    train_request = replace(request(*members), config=TrainConfig(advantages="art"))
    assert len(admit(train_request, LIMITS).dropped) == 3


def test_a_singleton_trains_on_the_advantage_it_was_given() -> None:
    admitted = admit(request(trajectory("alone", 1.0, advantage=0.3)), LIMITS)
    assert len(admitted.trajectories) == 1


def test_a_member_with_zero_advantage_stays_in_a_group_with_signal() -> None:
    members = (trajectory("a", 1.0), trajectory("b", 0.0), trajectory("c", 0.5))
    assert len(admit(request(*members), LIMITS).trajectories) == 3


def test_a_processed_temperature_trains_unless_art_computes_advantages() -> None:
    warm = turn(temperature=0.7, logprob_mode="processed")
    train_request = request(trajectory("a", 1.0, warm), trajectory("b", 0.0, warm))
    assert len(admit(train_request, LIMITS).trajectories) == 2
    by_art = replace(train_request, config=TrainConfig(advantages="art"))
    assert set(admit(by_art, LIMITS).dropped.values()) == {"temperature"}
