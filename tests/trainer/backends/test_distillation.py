"""Hints become an advantage for each token: the formula, and what becomes of turns without a hint."""

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.trainer.backends.admission import Limits, admit
from rollbus.trainer.backends.distillation import MOST_NATS, distill_hints, place_hints
from rollbus.trainer.backends.protocol import TrainRequest, TrainTrajectory, TurnTokens
from rollbus.trainer.backends.wire import request_from_bytes, request_to_bytes
from rollbus.trainer.train_config import Distillation, TrainConfig

RECORDED, HINTED = [-0.5, -1.25, -3.0], [-0.125, -2.5, -30.0]


def turn(hint: str = "", **fields: object) -> TurnTokens:
    ids = encode_token_ids([7, 8, 9])
    made = TurnTokens(encode_token_ids([1, 2, 3]), ids, encode_logprobs(RECORDED), 0, hint=hint)
    return replace(made, **fields)  # type: ignore[arg-type]


def trajectory(*turns: TurnTokens, name: str = "t", advantage: float = 0.75) -> TrainTrajectory:
    return TrainTrajectory(name, name, advantage, 1.0, turns)


def at_the_end(prompt: object, hint: str) -> list[int]:
    return [*prompt, len(hint)]  # type: ignore[misc]


def train(settings: Distillation, *trajectories: TrainTrajectory) -> tuple[TrainTrajectory, ...]:
    hinted_turns = place_hints(trajectories, at_the_end, max_tokens=64)
    trained, _ = distill_hints(trajectories, hinted_turns, [HINTED] * len(hinted_turns), settings)
    return trained


def test_a_token_advantage_adds_the_gain_of_its_hint_to_the_reward() -> None:
    (trained,) = train(Distillation(weight=0.4, reward_weight=2.0), trajectory(turn("the parcel")))
    recorded_T = torch.tensor(RECORDED, dtype=torch.float64)
    hinted_T = torch.tensor(HINTED, dtype=torch.float64)
    expected_T = 2.0 * 0.75 + 0.4 * (hinted_T - recorded_T).clamp(-MOST_NATS, MOST_NATS)
    assert torch.allclose(torch.tensor(trained.turns[0].token_advantages, dtype=torch.float64), expected_T, atol=1e-7)


def test_distilling_by_hints_alone_ignores_the_reward() -> None:
    (trained,) = train(Distillation(reward_weight=0.0), trajectory(turn("the parcel")))
    assert trained.turns[0].token_advantages == pytest.approx((0.375, -1.25, -MOST_NATS))


def test_a_turn_without_a_hint_has_the_advantage_of_its_reward() -> None:
    (trained,) = train(Distillation(reward_weight=0.5), trajectory(turn("no"), turn(advantage=-2.0)))
    assert trained.turns[1].token_advantages == (-1.0, -1.0, -1.0)


def test_a_turn_whose_hint_does_not_fit_learns_from_its_reward() -> None:
    batch = (trajectory(turn("too long")),)
    hinted_turns = place_hints(batch, at_the_end, max_tokens=6)
    trained, figures = distill_hints(batch, hinted_turns, [], Distillation())
    assert (figures["hints_without_place"], figures["distilled_turns"]) == (1.0, 0.0)
    assert trained[0].turns[0].token_advantages == (0.75, 0.75, 0.75)


def test_hinted_turns_are_scored_at_the_temperature_of_their_log_probs() -> None:
    raw, processed = turn("a", temperature=0.5), turn("a", temperature=0.5, logprob_mode="processed")
    hinted_turns = place_hints((trajectory(raw, processed),), at_the_end, max_tokens=64)
    assert [hinted.temperature for hinted in hinted_turns] == [1.0, 0.5]


def test_distilling_by_hints_alone_drops_turns_without_a_hint() -> None:
    batch = (trajectory(turn("the parcel"), name="hinted"), trajectory(turn(), name="plain"))
    config = TrainConfig(distill=Distillation(reward_weight=0.0))
    admitted = admit(TrainRequest("b", "main", "agent", 0, batch, config), Limits(64, 100))
    assert admitted.dropped == {"plain": "no_signal"}


def test_advantages_of_another_number_than_the_tokens_are_refused() -> None:
    batch = (trajectory(turn(token_advantages=(1.0, 2.0))),)
    admitted = admit(TrainRequest("b", "main", "agent", 0, batch), Limits(64, 100))
    assert admitted.dropped == {"t": "untrainable"}


def test_a_request_brings_its_hints_to_the_model_service() -> None:
    request = TrainRequest(
        "b", "main", "agent", 0, (trajectory(turn("no, the parcel")),), TrainConfig(distill=Distillation())
    )
    assert request_from_bytes(request_to_bytes(request)) == request


def test_advantages_that_art_computes_cannot_be_added_to() -> None:
    with pytest.raises(ValidationError, match="distill adds to given advantages"):
        TrainConfig(advantages="art", distill=Distillation())
