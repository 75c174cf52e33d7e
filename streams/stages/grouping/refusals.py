"""Why a score is not compared with others: a reason, and a detail that names it."""

from collections.abc import Iterable
from typing import Literal, TypeGuard

from rollbus.schemas.numbers import computable
from rollbus.schemas.records.config import RunConfig
from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.records.trajectories import Score

_OWN_CODES = {
    DropReason.MISSING_EVENTS,
    DropReason.NO_TURNS,
    DropReason.TOO_SHORT,
    DropReason.NOT_TARGETED,
    DropReason.EXCLUDED,
    DropReason.TOO_LARGE,
}
"""Reasons of assembly that are drop codes themselves; any other is a detail of `untrainable`."""
UNFINISHED = (
    "no end came, and no reward after its last turn: its agent was killed or cut off. "
    "`filter: {unfinished: all}` takes such episodes"
)


def refusal_of(score: Score, config: RunConfig) -> tuple[DropReason, str] | None:
    """Return why a score can join no group of the run; None if it can."""
    if outside := _mismatch_with_filter(score, config):
        return DropReason.NOT_TARGETED, f"{outside} is not of this run"
    if score.excluded:
        return DropReason.EXCLUDED, ""
    reason = score.untrainable_reason or ("no_policy_version" if score.min_policy_version is None else None)
    if reason is not None and (reason in _OWN_CODES or not config.filter.without_tokens):
        return (DropReason(reason) if reason in _OWN_CODES else DropReason.UNTRAINABLE), reason
    limit = config.grouping.max_history_tokens
    if limit is not None and score.longest_history_tokens > limit:
        return DropReason.OVERLONG, f"{score.longest_history_tokens} tokens, {limit} are allowed"
    return None


def _mismatch_with_filter(score: Score, config: RunConfig) -> str | None:
    """Name what keeps a score out of the run's filter; the model is the run's own unless the filter names others."""
    run_filter = config.filter
    if run_filter.tasks and score.task not in run_filter.tasks:
        return f"task {score.task!r}"
    if run_filter.agents and score.agent not in run_filter.agents:
        return f"agent {score.agent!r}"
    if score.model and score.model not in (run_filter.models or (config.model,)):
        return f"model {score.model!r}"
    other = [name for name, value in sorted(run_filter.labels.items()) if score.labels.get(name) != value]
    return f"label {other[0]!r}" if other else None


def is_comparable(value: float | None) -> TypeGuard[float]:
    """Say whether the value can be compared."""
    return value is not None and computable(value)


def without_value(score: Score, waited_ms: int | None = None) -> tuple[DropReason, str]:
    """Return why a score has no value that can be compared; `waited_ms` is how long it waited for one."""
    if score.outcome == "failed" or score.value is not None:
        return DropReason.SCORE_FAILED, score.error or f"the score is {score.value}"
    if waited_ms is None:
        return DropReason.SCORE_MISSING, "its reward was taken back"
    return DropReason.SCORE_MISSING, f"no reward came within {waited_ms} ms"


def mismatch_with_first(score: Score, first: Score, *, same_prompt: bool) -> str | None:
    """Return in what a score differs from the first of its group that it must share; None if it may join."""
    values, values_of_first = _shared_values(score), _shared_values(first)
    for name in ("model", *(("prompt", "tools") if same_prompt else ())):
        if values[name] != values_of_first[name]:
            return (
                f"began with {name} {values_of_first[name]} ({first.trajectory_id}), and this has {name} {values[name]}"
            )
    return None


def mismatch_of_rewards(scores: Iterable[Score]) -> str | None:
    """Return why the values of a group's members are of different scales; None if one reward gave them all."""
    versions = sorted({score.reward_version for score in scores})
    if len(versions) == 1:
        return None
    return (
        f"was scored by {len(versions)} versions of the rewards ({', '.join(versions)}): `scoring:` changed while it "
        "was open"
    )


def _shared_values(score: Score) -> dict[str, str]:
    return {"model": score.model, "prompt": score.prompt_hash or score.opening_hash, "tools": score.tools_hash}


def is_unfinished(score: Score, trained_unfinished: Literal["rewarded_after", "all", "none"]) -> bool:
    """Say whether a score is left out since its episode has no end: its agent may have been killed in the middle."""
    if score.closed_by == "ended" or trained_unfinished == "all":
        return False
    return trained_unfinished == "none" or not score.is_rewarded_after
