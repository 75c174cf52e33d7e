"""Reason of a drop → the stage of the funnel that it belongs to, what happened, and the one thing to do.

A new DropReason gets its stage here, and its words in `schemas/drop_words.py`; a test counts them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rollbus.health.funnel.numbers import GROUPED, IN_STEP, REWARDED, TRAINABLE, WITH_SIGNAL
from rollbus.producers.turns.advice import advise
from rollbus.schemas.drop_words import UNKNOWN, WORDS
from rollbus.schemas.records.drops import DropReason


@dataclass(frozen=True, slots=True)
class Loss:
    """What a reason means to a person."""

    stage: int
    """Which stage the episodes did not reach."""
    what: str
    remedy: str


OF_ONE = {"have": "has", "are": "is", "were": "was"}
"""Verbs, in the plural, with which the words of a loss begin → the same of one episode."""
NO_VERSION = "no_policy_version"
"""Why a run cannot use an episode of which every turn could be trained; the verdicts on turns are the producers'."""
STAGES: Mapping[int, tuple[str, ...]] = {
    TRAINABLE: (
        DropReason.UNTRAINABLE,
        DropReason.MISSING_EVENTS,
        DropReason.UNFINISHED,
        DropReason.TOO_LARGE,
        DropReason.NO_TURNS,
        DropReason.TOO_SHORT,
        DropReason.NOT_TARGETED,
        DropReason.EXCLUDED,
        DropReason.DUPLICATE_CONFLICT,
        DropReason.LATE_EVENT,
    ),
    REWARDED: (
        DropReason.SCORE_MISSING,
        DropReason.SCORE_FAILED,
        DropReason.ORPHANED_REWARD,
        DropReason.UNRESOLVED_ALIAS,
        DropReason.REWARD_NOT_ALLOWED,
        DropReason.TOO_MANY_REPORTS,
    ),
    GROUPED: (
        DropReason.OVERLONG,
        DropReason.INCOMPLETE_GROUP,
        DropReason.GROUP_CLOSED,
        DropReason.GROUP_MISMATCH,
    ),
    WITH_SIGNAL: (DropReason.NO_SIGNAL,),
    IN_STEP: (
        DropReason.CURRICULUM,
        DropReason.SUPERSEDED,
        DropReason.STALE,
        DropReason.OFF_LINEAGE,
        DropReason.TEMPERATURE,
        DropReason.SAMPLING,
        DropReason.PAYLOAD_LOST,
        DropReason.REJECTED_BY_BACKEND,
        DropReason.SOURCE_SHARE,
        DropReason.RUN_STOPPED,
        DropReason.RUN_REMOVED,
    ),
}
"""Which stage the episodes did not reach, by reason."""
LOSSES: Mapping[str, Loss] = {
    reason: Loss(stage, WORDS[reason].what, WORDS[reason].remedy)
    for stage, reasons in STAGES.items()
    for reason in reasons
}


def explain_loss(reason: str, detail: str = "") -> Loss:
    """Return what a reason means; the detail of an untrainable episode decides what to do."""
    loss = LOSSES.get(reason, Loss(IN_STEP, UNKNOWN.what, UNKNOWN.remedy))
    if reason == DropReason.NOT_TARGETED and detail:
        return Loss(loss.stage, f"are left out, since {detail}", loss.remedy)
    if reason == DropReason.UNTRAINABLE and detail:
        return Loss(loss.stage, f"have no turn that can be trained ({detail})", advise_turns(detail))
    return loss


def agree(what: str, number: int) -> str:
    """Return a loss's words with its verb as the number asks for."""
    verb, _, rest = what.partition(" ")
    return f"{OF_ONE[verb]} {rest}" if number == 1 and verb in OF_ONE else what


def advise_turns(verdict: str) -> str:
    """Return what to change about turns that cannot be trained."""
    if verdict == NO_VERSION:
        return "the server does not say which weights answered; rollbus' own does: let the agent ask there"
    return advise(verdict, "")
