"""Answers to one prompt with their scores → preference pairs: what was better, and what was worse.

Pure, and of use wherever candidates are scored: the attempts of a group here, the moves of a search elsewhere.
A pair needs a real difference: equal scores, and equal answers, say nothing about a preference.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from rollbus.schemas.ids import canonical_json

ChatMessage = Mapping[str, Any]
"""OpenAI's form: role, content, and tool calls where there are any."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One answer to a prompt."""

    id: str
    prompt: tuple[ChatMessage, ...]
    completion: ChatMessage
    score: float
    tools: str = ""
    """JSON of the tool schemas that were offered; answers to other tools are not compared."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What a data set says about it besides: trajectory, turn, policy version."""


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Two answers to one prompt, the better one first."""

    chosen: Candidate
    rejected: Candidate

    @property
    def prompt(self) -> tuple[ChatMessage, ...]:
        """Return what both answer."""
        return self.chosen.prompt

    @property
    def margin(self) -> float:
        """Return the difference of the scores, above 0."""
        return self.chosen.score - self.rejected.score


def same_prompt(candidate: Candidate) -> Hashable:
    """Return what two candidates share that answer the same prompt with the same tools."""
    return canonical_json([list(candidate.prompt), candidate.tools])


def group_candidates(candidates: Iterable[Candidate]) -> list[tuple[Candidate, ...]]:
    """Return the candidates by prompt, in the order in which the prompts first came."""
    groups: dict[Hashable, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(same_prompt(candidate), []).append(candidate)
    return [tuple(group) for group in groups.values()]


def preference_pairs(
    candidates: Sequence[Candidate],
    *,
    min_margin: float = 0.0,
    exhaustive: bool = False,
    max_pairs: int | None = None,
) -> list[PreferencePair]:
    """Return pairs from the answers to one prompt, the clearest first.

    One pair of the best and the worst, or with `exhaustive` every pair that differs by `min_margin` (and more than 0).
    """
    ranked = sorted(candidates, key=lambda candidate: (-candidate.score, candidate.id))
    made = [
        PreferencePair(better, worse)
        for better, worse in combinations(ranked, 2)
        if better.score > worse.score
        and better.score - worse.score >= min_margin
        and dict(better.completion) != dict(worse.completion)
    ]
    made.sort(key=lambda pair: (-pair.margin, pair.chosen.id, pair.rejected.id))
    return made[: 1 if not exhaustive else max_pairs]
