"""Turns with a hint → an advantage for each of their tokens: hindsight distillation, on the policy's own samples.

    d_t = log p(token_t | the prompt with the hint) − its recorded log-prob, bounded to ±MOST_NATS
    A_t = w_r · A + w_d · d_t

p is the version that the step begins with; A is what grouping computed, of the turn if turns have their own. A token
that the hint makes likelier is raised, one that it makes less likely is lowered, whatever the other tokens of the turn
did. OpenClaw-RL trains on the same difference, unbounded, with hints that a judge writes. Pure.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids
from rollbus.trainer.backends.protocol import TrainTrajectory, TurnTokens
from rollbus.trainer.train_config import Distillation

MOST_NATS = 5.0
"""A token that a hint rules out has a difference of 20 nats and more: it would outweigh a batch of rewards. At 5 its
probability is a 150th already."""

PlaceHint = Callable[[Sequence[int], str], list[int] | None]
"""A prompt's tokens and a hint to the prompt with the hint in it; None if there is no place for it."""


@dataclass(frozen=True, slots=True)
class HintedTurn:
    """A turn as the hinted model reads it."""

    trajectory: int
    """Place in the batch, and of the turn in its trajectory."""
    turn: int
    prompt: list[int]
    completion: list[int]
    temperature: float
    """What logits are divided by before they are compared with the recorded log-probs."""


def place_hints(trajectories: Sequence[TrainTrajectory], place_hint: PlaceHint, *, max_tokens: int) -> list[HintedTurn]:
    """Return the turns whose hint has a place in their prompt, and fits."""
    hinted_turns = []
    for row, trajectory in enumerate(trajectories):
        for column, turn in enumerate(trajectory.turns):
            if not turn.hint:
                continue
            prompt = place_hint(decode_token_ids(turn.prompt_token_ids).tolist(), turn.hint)
            completion = decode_token_ids(turn.completion_token_ids).tolist()
            if prompt is not None and len(prompt) + len(completion) <= max_tokens:
                temperature = turn.temperature if turn.logprob_mode == "processed" else 1.0
                hinted_turns.append(HintedTurn(row, column, prompt, completion, temperature))
    return hinted_turns


def distill_hints(
    trajectories: Sequence[TrainTrajectory],
    hinted_turns: Sequence[HintedTurn],
    logprobs: Sequence[Sequence[float]],
    settings: Distillation,
    *,
    reward_scale: float = 1.0,
) -> tuple[tuple[TrainTrajectory, ...], dict[str, float]]:
    """Return the trajectories with an advantage for each token, and what the step reports of it.

    `logprobs` are those of the hinted turns, in their order. Turns without a hint have w_r · A.
    """
    hinted_by_place = {
        (hinted.trajectory, hinted.turn): list(of_turn) for hinted, of_turn in zip(hinted_turns, logprobs, strict=True)
    }
    gains: list[float] = []

    def train_turn(row: int, column: int, trajectory: TrainTrajectory, turn: TurnTokens) -> TurnTokens:
        by_reward = [
            settings.reward_weight * reward_scale * advantage for advantage in trajectory.token_advantages_of(turn)
        ]
        hinted_T = hinted_by_place.get((row, column))
        if hinted_T is None:
            return replace(turn, token_advantages=tuple(by_reward))
        gains_T = gains_by_hint(decode_logprobs(turn.logprobs), hinted_T)
        gains.extend(gains_T)
        advantages_T = [advantage + settings.weight * gain for advantage, gain in zip(by_reward, gains_T, strict=True)]
        return replace(turn, token_advantages=tuple(advantages_T))

    trained = tuple(
        replace(
            trajectory,
            turns=tuple(train_turn(row, column, trajectory, turn) for column, turn in enumerate(trajectory.turns)),
        )
        for row, trajectory in enumerate(trajectories)
    )
    hints = sum(bool(turn.hint) for trajectory in trajectories for turn in trajectory.turns)
    return trained, {
        "distilled_turns": float(len(hinted_turns)),
        "distilled_tokens": float(len(gains)),
        "hints_without_place": float(hints - len(hinted_turns)),
        "distilled_gain_mean": math.fsum(gains) / max(len(gains), 1),
        "distilled_gain_absolute": math.fsum(map(abs, gains)) / max(len(gains), 1),
    }


def gains_by_hint(recorded_T: Sequence[float], hinted_T: Sequence[float]) -> list[float]:
    """Return how much likelier the hint makes each token, in nats."""
    return [
        max(-MOST_NATS, min(MOST_NATS, hinted - recorded))
        for recorded, hinted in zip(recorded_T, hinted_T, strict=True)
    ]
