"""The picture of health and each run's funnel → one line, and whether all is well.

All is well only where every process works, and in every run something comes to its next step at the present rate, with
a trainer that lives.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rollbus.health.funnel.funnel import Funnel, hold_funnel
from rollbus.health.picture import WORKER, Picture
from rollbus.runtime.health.alarms.processes import find_trained_runs

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
    words = [reason for funnel in funnels if (reason := _say_why_nothing_comes(funnel, picture))]
    return Verdict("; ".join(["every process works", *words]) if words else ALL_IS_WELL, is_wrong=False)


def hold_funnels(picture: Picture, funnels: Sequence[Funnel]) -> tuple[Funnel, ...]:
    """Return the funnels, without a promise of a step where a process that it needs does not live."""
    return tuple(
        hold_funnel(funnel, missing) if (missing := _find_missing(funnel, picture)) else funnel for funnel in funnels
    )


def _find_missing(funnel: Funnel, picture: Picture) -> str:
    """Return which process a run's next step lacks; nothing if it has all.

    A run without a trainer may be meant so: its traffic is only recorded.
    """
    living, forecast = [process for process in picture.processes if process.is_alive], funnel.forecast
    if funnel.run_id not in find_trained_runs(living):
        return f"no trainer of run {funnel.run_id} runs"
    has_batch = forecast is not None and forecast.is_batch_made
    return "" if has_batch or any(process.kind == WORKER for process in living) else "no worker runs"


def _say_why_nothing_comes(funnel: Funnel, picture: Picture) -> str:
    """Return why a run's next step does not come, though nothing is broken; nothing if it does."""
    forecast = funnel.forecast
    if forecast is not None and forecast.held:
        return f"run {funnel.run_id} is {forecast.held}"
    if missing := _find_missing(funnel, picture):
        return f"{missing}, so nothing trains (`rollbus start` starts what is missing)"
    if not any(stage.episodes for stage in funnel.stages):
        return f"run {funnel.run_id} has no episodes"
    if forecast is None or forecast.eta_ms is not None:
        return ""
    if forecast.unrewarded:
        return f"{forecast.step_name} of run {funnel.run_id} waits for rewards"
    return f"at this rate {forecast.step_name} of run {funnel.run_id} never comes"
