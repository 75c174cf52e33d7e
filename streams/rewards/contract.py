"""What a reward function is, and what it is given.

It may be sync or async. It returns a number, or None where it cannot say yet: None is not 0. It may raise, hang or
return nonsense: that harms the score of its trajectory and nothing else. One over a closed group returns a number or
None for each member, in their order; where it fails as a whole it harms that group and no other.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from rollbus.schemas.records.trajectories import Trajectory, TurnReward

Option = str | int | float | bool | None
Ask = Callable[[Sequence[Mapping[str, str]], Mapping[str, Option]], Awaitable[str]]
"""Chat messages and options to the text that a model answers."""

MOST_HINT_CHARACTERS = 400
"""Of a component's own words on how to answer better: two or three sentences. A score has up to 20 of them."""


@dataclass(frozen=True, slots=True)
class RewardContext:
    """What a reward function may use in addition to the trajectory."""

    name: str
    """Of the component."""
    options: Mapping[str, Option] = field(default_factory=dict)
    ask: Ask | None = None
    """A model to ask, where the worker was given one."""
    earlier: tuple[TurnReward, ...] = ()
    """What the component has said of the trajectory's turns, if it is asked again."""
    revision: int = 0
    """Of the trajectory's rewards."""
    verdicts: dict[str, TurnReward] = field(default_factory=dict)
    """What the component has found out of single turns, by a key of its own; there again if the call fails and it is
    called again, so that it need not ask, and pay, twice."""


@dataclass(frozen=True, slots=True)
class TurnValues:
    """A function's answer about single turns; it replaces what it said earlier."""

    turns: tuple[TurnReward, ...]
    total: float | None = None
    """What the trajectory is worth; None if there is nothing to say yet."""


def plain_hint(hint: str) -> str:
    """Return a hint as one line of at most MOST_HINT_CHARACTERS, without characters that are not for reading."""
    printable_hint = "".join(character if character.isprintable() else " " for character in hint)
    return " ".join(printable_hint.split())[:MOST_HINT_CHARACTERS].strip()


def average_turns(turns: Iterable[TurnReward]) -> TurnValues:
    """Return turns whose mean, weighted by confidence, is what the trajectory is worth; unclear ones have no part."""
    turns = tuple(turns)
    confidences = [turn.confidence if turn.value is not None else 0.0 for turn in turns]
    if not (total_confidence := math.fsum(confidences)):
        return TurnValues(tuple(replace(turn, share=0.0) for turn in turns))
    shares = [confidence / total_confidence for confidence in confidences]
    total = math.fsum(share * (turn.value or 0.0) for turn, share in zip(turns, shares, strict=True))
    return TurnValues(tuple(replace(turn, share=share) for turn, share in zip(turns, shares, strict=True)), total)


Answer = float | TurnValues | None
Call = Callable[[Trajectory, RewardContext], Answer | Awaitable[Answer]]
Values = Sequence[float | None]
GroupCall = Callable[[Sequence[Trajectory], RewardContext], Values | Awaitable[Values]]


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """One row of the registry."""

    call: Call | GroupCall
    version: str = "1"
    """Part of the reward version: raise it when the meaning changes."""
    per: Literal["trajectory", "group"] = "trajectory"
    """What it is called with: one trajectory, or all members of a closed group."""
    quick: bool = False
    """True where it neither waits nor computes for long: called in place, without a thread and a timeout."""
    reads_feedback: bool = False
    """True where it looks at reported rewards only: it is asked again when they change, with a trajectory that has
    no turns, or only the last one if a user said something about it."""
    patient: bool = False
    """True where it waits for what is bound to come, as for an answer that is being written down: without a timeout."""


def last_text(trajectory: Trajectory) -> str:
    """Return the text of the last completion; empty without one."""
    return (trajectory.turns[-1].completion.content or "") if trajectory.turns else ""
