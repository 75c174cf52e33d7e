"""An effect and its tolerance → better, not worse, worse, or not yet known; and whether it rests on one principal."""

from collections.abc import Iterable
from math import log
from typing import Literal

from rollbus.streams.stages.delivery.evidence.effect import Effect

Verdict = Literal["better", "not_worse", "worse", "unknown"]
Goal = Literal["more", "less"]
GOOD: tuple[Verdict, ...] = ("better", "not_worse")


def judge(effect: Effect, *, goal: Goal, margin: float, tolerance: float, alpha: float, unseen: float = 0.0) -> Verdict:
    """Return what is certain: each of the two errors, in either direction, has probability alpha / 2 at most.

    `margin` is how much worse still counts as not worse; `tolerance` how much worse is not yet a reason to stop. Both
    are on the scale of [0, 1]. `unseen` is how far the effect may be from the true one for what no episode shows.
    """
    threshold = -log(alpha / 2)

    def gain_above(least: float) -> bool:
        evidence = effect.log_evidence_above(least) if goal == "more" else effect.log_evidence_below(-least)
        return evidence >= threshold

    def gain_below(most: float) -> bool:
        evidence = effect.log_evidence_below(most) if goal == "more" else effect.log_evidence_above(-most)
        return evidence >= threshold

    if gain_below(-tolerance - unseen):
        return "worse"
    if gain_above(unseen):
        return "better"
    return "not_worse" if gain_above(-margin + unseen) else "unknown"


def agree(verdict: Verdict, verdicts_without: Iterable[Verdict]) -> Verdict:
    """Return what is also certain without each principal that might have decided it, or "unknown"."""
    for other in verdicts_without:
        if verdict == "worse" and other != "worse":
            return "unknown"
        if verdict in GOOD and other not in GOOD:
            return "unknown"
        if verdict == "better":
            verdict = other
    return verdict
