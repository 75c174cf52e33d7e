"""A batch → the token sequences that train: turns of one history that continue one another are one.

Pure. Nothing is copied: the prompt of a sequence's last turn holds all turns before it. The learner of this project and
the Tinker backend both begin here, with the given advantages. Those that ART would compute are for `advantages: art`
and for clients that drive this project's server with ART:

    A_k   reward less the mean of its group, over (deviation + 1e-6) if rewards are scaled; 0 leaves the trajectory out
    w_k   1 / (L_k + 1e-6): every trajectory counts alike; L_k are its sampled tokens
    A_k   then divided by the mean of |A| · w over all sampled tokens, w of mean 1

These are the formulas of `art.preprocessing` 0.5.23, computed here since ART's import takes 219 MB; a test holds them
against ART's packed tensors.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rollbus.schemas.records.tokens import token_count
from rollbus.trainer.backends.protocol import TrainTrajectory, TurnTokens
from rollbus.trainer.grpo.aggregation import Aggregation, batch_scale, token_weight
from rollbus.trainer.train_config import TrainConfig

FLOOR = 1e-6
EQUAL = 1e-12
"""Rewards that differ by no more are equal."""


@dataclass(frozen=True, slots=True)
class ArtAdvantages:
    """What a client of ART may choose."""

    scale_rewards: bool = True
    balance: float = 0.0
    """Above 0 it takes this share of negative advantages away, below 0 that of positive ones."""


@dataclass(frozen=True, slots=True)
class SampledSpan:
    """Tokens start … end − 1 of a sequence, which one turn sampled."""

    start: int
    end: int
    turn: TurnTokens


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Tokens that were sampled on top of one another."""

    trajectory: TrainTrajectory
    turns: tuple[TurnTokens, ...]
    """At least one; the prompt of each begins with all of the one before it."""
    weight: float = 1.0
    """Of each sampled token in the loss, of mean 1 over the tokens of the step."""

    @property
    def token_ids(self) -> bytes:
        """All tokens, packed as those of a turn."""
        return self.turns[-1].prompt_token_ids + self.turns[-1].completion_token_ids

    @property
    def spans(self) -> tuple[SampledSpan, ...]:
        """What was sampled, in its order."""
        starts = [token_count(turn.prompt_token_ids) for turn in self.turns]
        return tuple(
            SampledSpan(start, start + token_count(turn.completion_token_ids), turn)
            for start, turn in zip(starts, self.turns, strict=True)
        )

    @property
    def sampled_tokens(self) -> int:
        """Number of sampled tokens."""
        return _count_sampled(self.turns)

    @property
    def advantages(self) -> Iterator[float]:
        """The advantage of each sampled token."""
        return (value for turn in self.turns for value in self.trajectory.token_advantages_of(turn))


def make_sequences(
    trajectories: Iterable[TrainTrajectory], weight_by_id: Mapping[str, float]
) -> tuple[TokenSequence, ...]:
    """Return the sequences of a batch; the weights of trajectories, by their ids, are brought to mean 1 over tokens."""
    drafts = [
        (trajectory, turns, weight_by_id[trajectory.trajectory_id])
        for trajectory in trajectories
        for turns in join_turns(trajectory.turns)
    ]
    tokens = sum(_count_sampled(turns) for _, turns, _ in drafts)
    mean = sum(weight * _count_sampled(turns) for _, turns, weight in drafts) / max(tokens, 1)
    return tuple(TokenSequence(trajectory, turns, weight / mean) for trajectory, turns, weight in drafts)


def make_art_sequences(
    trajectories: Sequence[TrainTrajectory], choice: ArtAdvantages = ArtAdvantages()
) -> tuple[TokenSequence, ...]:
    """Return the sequences of a batch with ART's advantages and weights; none where no reward differs.

    ART knows no advantage of a turn or of a token, so those of the batch are left out.
    """
    advantaged = [
        replace(member, advantage=advantage, turns=tuple(map(_without_advantage, member.turns)))
        for group in group_trajectories(trajectories).values()
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


def weigh_trajectories(trajectories: Sequence[TrainTrajectory], aggregation: Aggregation) -> dict[str, float]:
    """Return the weight of each trajectory's tokens, by its id, before they are brought to mean 1."""
    weight_by_id = {}
    for members in group_trajectories(trajectories).values():
        tokens_by_id = count_tokens(members)
        of_group = sum(tokens_by_id.values())
        for name, tokens in tokens_by_id.items():
            weight_by_id[name] = token_weight(aggregation, trajectory_tokens=tokens, group_tokens=of_group)
    return weight_by_id


def find_reward_scale(trajectories: Iterable[TrainTrajectory], config: TrainConfig) -> float:
    """Return what advantages by rewards are multiplied by."""
    if config.advantage_scale == "none":
        return 1.0
    return batch_scale([trajectory.reward for trajectory in trajectories])


def scale_advantages(trajectories: Sequence[TrainTrajectory], scale: float) -> tuple[TrainTrajectory, ...]:
    """Return trajectories with all their advantages multiplied."""
    if scale == 1.0:
        return tuple(trajectories)

    def scale_turn(turn: TurnTokens) -> TurnTokens:
        of_tokens = tuple(scale * advantage for advantage in turn.token_advantages)
        of_turn = None if turn.advantage is None else scale * turn.advantage
        return replace(turn, advantage=of_turn, token_advantages=of_tokens)

    return tuple(
        replace(trajectory, advantage=scale * trajectory.advantage, turns=tuple(map(scale_turn, trajectory.turns)))
        for trajectory in trajectories
    )


def count_tokens(trajectories: Iterable[TrainTrajectory]) -> dict[str, int]:
    """Return the number of tokens that each trajectory sampled, by its id."""
    return {trajectory.trajectory_id: _count_sampled(trajectory.turns) for trajectory in trajectories}


def group_trajectories(trajectories: Iterable[TrainTrajectory]) -> dict[str, list[TrainTrajectory]]:
    """Return the members of each group, by its id, in the order of its first one."""
    groups: dict[str, list[TrainTrajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group_id, []).append(trajectory)
    return groups


def join_turns(turns: Iterable[TurnTokens]) -> list[tuple[TurnTokens, ...]]:
    """Return the turns of each sequence: one for each history, and one more where a prompt does not continue it."""
    sequences: list[list[TurnTokens]] = []
    newest_by_history: dict[int, list[TurnTokens]] = {}
    for turn in turns:
        sequence = newest_by_history.get(turn.history)
        if sequence is None or not _continues(sequence[-1], turn):
            sequence = newest_by_history[turn.history] = []
            sequences.append(sequence)
        sequence.append(turn)
    return list(map(tuple, sequences))


def _continues(turn: TurnTokens, later: TurnTokens) -> bool:
    """Say whether the prompt of a later turn begins with all of an earlier one."""
    return later.prompt_token_ids.startswith(turn.prompt_token_ids + turn.completion_token_ids)


def _count_sampled(turns: Iterable[TurnTokens]) -> int:
    return sum(token_count(turn.completion_token_ids) for turn in turns)


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
