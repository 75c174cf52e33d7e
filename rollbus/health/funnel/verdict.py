"""The picture of health and each run's funnel → one line, and whether all is well.

All is well only where every process works, and in every run something comes to its next step at the present rate, with
a trainer that lives.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from rollbus.health.funnel.funnel import Funnel
from rollbus.health.picture import TRAINER, Picture

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
    training = {
        name.split()[1]
        for process in picture.processes
        if process.is_alive and process.kind == TRAINER
        for name in process.holds
    }
    words = [reason for funnel in funnels if (reason := _say_why_nothing_comes(funnel, training))]
    return Verdict("; ".join(["every process works", *words]) if words else ALL_IS_WELL, is_wrong=False)


def _say_why_nothing_comes(funnel: Funnel, training: Container[str]) -> str:
    """Return why a run's next step does not come, though nothing is broken; nothing if it does.

    `training` are the runs that have a living trainer. One without may be meant so: its traffic is only recorded.
    """
    forecast = funnel.forecast
    if funnel.run_id not in training and not (forecast and forecast.held):
        return f"no trainer of run {funnel.run_id} runs, so nothing trains (`rollbus start` starts what is missing)"
    if not any(stage.episodes for stage in funnel.stages):
        return f"run {funnel.run_id} has no episodes"
    if forecast is None or forecast.eta_ms is not None:
        return ""
    if forecast.held:
        return f"run {funnel.run_id} is {forecast.held}"
    if forecast.unrewarded:
        return f"{forecast.step_name} of run {funnel.run_id} waits for rewards"
    return f"at this rate {forecast.step_name} of run {funnel.run_id} never comes"
