"""The picture of health and each run's funnel → one line, and whether all is well.

All is well only where every process works and something is trained, or on its way to be.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rollbus.health.funnel.funnel import Funnel
from rollbus.health.picture import Picture

ALL_IS_WELL = "all is well"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said first."""

    text: str
    is_wrong: bool
    """Whether something is to be done; the command's exit code is 1."""


def give_verdict(picture: Picture, funnels: Sequence[Funnel]) -> Verdict:
    """Return what is to be said of both."""
    blocked = [funnel for funnel in funnels if funnel.is_blocked]
    if picture.problems or blocked:
        words = [picture.verdict] if picture.problems else []
        words += [f"run {funnel.run_id} cannot train" for funnel in blocked]
        return Verdict("; ".join(words), is_wrong=True)
    if not any(process.is_alive for process in picture.processes):
        return Verdict(picture.verdict, is_wrong=False)
    unknown = [funnel for funnel in funnels if funnel.trouble is not None]
    if unknown:
        return Verdict("every process works; what becomes of the episodes is not known", is_wrong=False)
    idle = [funnel.run_id for funnel in funnels if not any(stage.episodes for stage in funnel.stages)]
    if idle:
        return Verdict(f"every process works; run {', '.join(idle)} has no episodes", is_wrong=False)
    return Verdict(ALL_IS_WELL, is_wrong=False)
