"""Answers to one prompt with their scores → preference pairs: a better answer and a worse one.

Pure. The candidates may be the attempts of a group, or the moves of a search in the NeMo Agent Toolkit.
A pair needs a difference: equal scores or equal answers show no preference.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from rollbus.consumers.export.forms import ChatMessage
from rollbus.schemas.ids import canonical_json


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
    """What a data set holds of it in addition: trajectory, task, reward, policy version."""


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Two answers to one prompt, the better one first."""

    chosen: Candidate
    rejected: Candidate

    @property
    def prompt(self) -> tuple[ChatMessage, ...]:
        """Return the prompt of both."""
        return self.chosen.prompt

    @property
    def margin(self) -> float:
        """Return the difference of the scores, above 0."""
        return self.chosen.score - self.rejected.score


def group_candidates(candidates: Iterable[Candidate]) -> list[tuple[Candidate, ...]]:
    """Return the candidates of the same prompt and tools together, in the order in which each group began."""
    groups: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(canonical_json([list(candidate.prompt), candidate.tools]), []).append(candidate)
    return [tuple(group) for group in groups.values()]


def preference_pairs(
    candidates: Sequence[Candidate],
    *,
    min_margin: float = 0.0,
    exhaustive: bool = False,
    max_pairs: int | None = None,
) -> list[PreferencePair]:
    """Return pairs from the answers to one prompt, the clearest first.

    The scores of a pair differ by `min_margin` or more. Without `exhaustive` there is one pair, in most cases of the
    best and the worst answer; with it there are all, at most `max_pairs`.
    """
    ranked = sorted(candidates, key=lambda candidate: (-candidate.score, candidate.id))
    pairs = [
        PreferencePair(better, worse)
        for better, worse in combinations(ranked, 2)
        if better.score > worse.score
        and better.score - worse.score >= min_margin
        and dict(better.completion) != dict(worse.completion)
    ]
    pairs.sort(key=lambda pair: (-pair.margin, pair.chosen.id, pair.rejected.id))
    return pairs[:max_pairs] if exhaustive else pairs[:1]
