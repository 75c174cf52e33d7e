"""ART's own advantages and weights, of `advantages: art` and of clients that drive this server with ART.

    A_k   reward less the mean of its group, over (deviation + 1e-6) if rewards are scaled; 0 leaves the trajectory out
    w_k   1 / (L_k + 1e-6): every trajectory counts alike; L_k are its sampled tokens
    A_k   then divided by the mean of |A| · w over all sampled tokens, w of mean 1

The formulas of `art.preprocessing` 0.5.23, computed here since ART's import takes 219 MB; a test holds them against
ART's packed tensors. Pure.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rollbus.trainer.backends.protocol import TrainTrajectory, TurnTokens
from rollbus.trainer.backends.sequences import TokenSequence, count_tokens, make_sequences

FLOOR = 1e-6
EQUAL = 1e-12
"""Rewards that differ by no more are equal."""


@dataclass(frozen=True, slots=True)
class ArtAdvantages:
    """What a client of ART may choose."""

    scale_rewards: bool = True
    balance: float = 0.0
    """Above 0 it takes this share of negative advantages away, below 0 that of positive ones."""


def make_art_sequences(
    trajectories: Sequence[TrainTrajectory], choice: ArtAdvantages = ArtAdvantages()
) -> tuple[TokenSequence, ...]:
    """Return the sequences of a batch with ART's advantages and weights; none where no reward differs.

    ART knows no advantage of a turn or of a token, so those of the batch are left out.
    """
    advantaged = [
        replace(member, advantage=advantage, turns=tuple(map(_without_advantage, member.turns)))
        for group in _group_trajectories(trajectories)
        for member, advantage in zip(group, _compare([member.reward for member in group], choice), strict=True)
        if advantage
    ]
    tokens_by_id = count_tokens(advantaged)
    weight_by_id = {name: 1 / (tokens + FLOOR) for name, tokens in tokens_by_id.items()}
    balanced = [replace(member, advantage=_balance(member.advantage, choice.balance)) for member in advantaged]
    shares = {name: weight_by_id[name] * tokens for name, tokens in tokens_by_id.items()}
    size = math.fsum(abs(member.advantage) * shares[member.trajectory_id] for member in balanced)
    mean = size / math.fsum(shares.values()) if shares else 0.0
    if not mean:
        return ()
    return make_sequences([replace(member, advantage=member.advantage / mean) for member in balanced], weight_by_id)


def _group_trajectories(trajectories: Iterable[TrainTrajectory]) -> Iterable[list[TrainTrajectory]]:
    groups: dict[str, list[TrainTrajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    return groups.values()


def _compare(rewards: Sequence[float], choice: ArtAdvantages) -> list[float]:
    """Return the advantage of each member of a group."""
    if all(abs(reward - rewards[0]) <= EQUAL for reward in rewards):
        return [0.0] * len(rewards)
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    unit = deviation + FLOOR if choice.scale_rewards else 1.0
    return [(reward - mean) / unit for reward in rewards]


def _without_advantage(turn: TurnTokens) -> TurnTokens:
    return replace(turn, advantage=None, token_advantages=())


def _balance(advantage: float, balance: float) -> float:
    if balance > 0 > advantage:
        return advantage * (1 - balance)
    return advantage * (1 + balance) if advantage > 0 > balance else advantage
