"""Steps, the newest curriculum window and what the trainer says → each run, and what is wrong with it.

A run that an operator has paused or stopped owes no steps, and one without traffic cannot make any: both are said
instead of `no_step`. After a time without traffic, a step is owed from the first episode on. A step that is open for
long is named with its age, and with how long the newest steps took, while its trainer lives: one whose trainer is gone
is not being trained.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rollbus.runtime.health.alarms.limits import AlarmLimits
from rollbus.runtime.health.alarms.problem import RUNBOOK, Problem, say_duration
from rollbus.schemas.records.groups import CurriculumState
from rollbus.schemas.records.steps import StepCompleted, StepFailed, StepSkipped, StepStarted

StepRecord = StepStarted | StepCompleted | StepSkipped | StepFailed
NEWEST_STEPS = 5
"""How many steps count as the newest: with fewer, a batch of hard tasks would look like a fall of the reward."""
EARLIER_STEPS = 4 * NEWEST_STEPS
"""How many steps before the newest ones these are compared with, at most."""
LONG_FACTOR = 3
"""An open step is long if it takes so many times as long as the longest of the newest ones."""


@dataclass(frozen=True, slots=True)
class RunHealth:
    """One run's training."""

    run_id: str
    model: str
    step: int
    """Number of the newest closed step; 0 before the first."""
    version: int | None
    step_age_ms: int | None
    open_step: int | None
    open_age_ms: int | None
    steps_per_hour: float | None
    reward: float | None
    """Mean over the newest steps."""
    reward_before: float | None
    """Mean over the steps before these; None if they are too few."""
    failure: str | None
    """Error of the newest attempt at a step, if no step was closed since."""
    no_signal_share: float | None
    """Share of the groups without a signal in the newest curriculum window; the trainer never sees such a group."""
    standing: str | None = None
    """Why its trainer takes no batches although it could, such as a pause."""
    longest_step_ms: int | None = None
    """Time of the longest of the newest completed steps."""


def steps_by_run(steps: Iterable[StepRecord]) -> dict[str, list[StepRecord]]:
    """Return each run's records, in the order of the log."""
    by_run: dict[str, list[StepRecord]] = {}
    for step in steps:
        by_run.setdefault(step.run_id, []).append(step)
    return by_run


def draw_run(
    run_id: str,
    steps: Sequence[StepRecord],
    now_ms: int,
    *,
    no_signal_share: float | None = None,
    standing: str | None = None,
) -> RunHealth:
    """Return a run as its records show it now."""
    closed_steps = [step for step in steps if isinstance(step, StepCompleted | StepSkipped)]
    completed_steps = [step for step in closed_steps if isinstance(step, StepCompleted)]
    newest, last_record = (closed_steps[-1] if closed_steps else None), steps[-1]
    open_step = last_record if isinstance(last_record, StepStarted) else None
    rewards = [reward for step in completed_steps if (reward := step.metrics.get("reward_mean")) is not None]
    earlier_rewards = rewards[-EARLIER_STEPS - NEWEST_STEPS : -NEWEST_STEPS]
    steps_of_last_hour = [step for step in closed_steps if now_ms - step.completed_at_ms <= 3_600_000]
    return RunHealth(
        run_id=run_id,
        model=last_record.model,
        step=newest.step if newest else 0,
        version=completed_steps[-1].policy_version if completed_steps else None,
        step_age_ms=None if newest is None else max(0, now_ms - newest.completed_at_ms),
        open_step=open_step.step if open_step else None,
        open_age_ms=max(0, now_ms - open_step.started_at_ms) if open_step else None,
        steps_per_hour=float(len(steps_of_last_hour)) if closed_steps else None,
        reward=fmean(rewards[-NEWEST_STEPS:]) if rewards else None,
        reward_before=fmean(earlier_rewards) if len(earlier_rewards) >= NEWEST_STEPS else None,
        failure=f"{last_record.error_class}: {last_record.message}" if isinstance(last_record, StepFailed) else None,
        no_signal_share=no_signal_share,
        standing=standing,
        longest_step_ms=max(
            (step.completed_at_ms - step.started_at_ms for step in completed_steps[-NEWEST_STEPS:]), default=None
        ),
    )


def find_run_problems(run: RunHealth, limits: AlarmLimits, *, has_trainer: bool) -> Iterable[Problem]:
    """Yield what is wrong with a run, by its steps and whether a trainer of it lives."""
    name = f"run {run.run_id}"
    if run.failure is not None:
        yield Problem("failed", name, f"step {run.step + 1} of {name} failed: {run.failure}", f"{RUNBOOK}#failed")
    if run.standing is not None:
        yield Problem("paused", name, f"{name} takes no batches: {run.standing}", f"{RUNBOOK}#paused")
    elif run.open_step is not None and has_trainer:
        yield from _find_long_step(run, limits)
    elif limits.no_step_s is not None and run.step_age_ms is not None and run.step_age_ms > limits.no_step_s * 1000:
        what = f"{name} has closed no step for {say_duration(run.step_age_ms)}"
        remedy = "`rollbus status` says at which stage the episodes are lost; does a trainer run?"
        yield Problem("no_step", name, what, f"{remedy} {RUNBOOK}#no-step")
    if limits.reward_fall is not None and run.reward is not None and run.reward_before is not None:
        fall = run.reward_before - run.reward
        if fall > limits.reward_fall:
            what = f"the mean reward of {name} fell by {fall:.3f} to {run.reward:.3f}"
            yield Problem("reward", name, what, f"`rollbus policy rollback` goes back; {RUNBOOK}#reward")


def explain_no_step(problem: Problem, traffic_age_ms: int | None, limits: AlarmLimits) -> Problem:
    """Return the problem; a run that gets no episodes lacks traffic, and that is reported in its place."""
    limit_s = limits.no_step_s
    is_idle = limit_s is not None and traffic_age_ms is not None and traffic_age_ms > limit_s * 1000
    if problem.alarm != "no_step" or traffic_age_ms is None or not is_idle:
        return problem
    what = f"no episode has begun for {say_duration(traffic_age_ms)}, so {problem.subject} has nothing to train"
    remedy = "does the agent run, and does it record into this namespace?"
    return Problem("no_traffic", problem.subject, what, f"{remedy} {RUNBOOK}#no-traffic")


def is_step_owed_later(problem: Problem, owed_ms: int | None, limits: AlarmLimits) -> bool:
    """Say whether a step is missed too early: the first episode since the newest one began only `owed_ms` ago."""
    limit_s = limits.no_step_s
    if problem.alarm != "no_step" or owed_ms is None or limit_s is None:
        return False
    return owed_ms <= limit_s * 1000


def _find_long_step(run: RunHealth, limits: AlarmLimits) -> Iterable[Problem]:
    """Yield an open step that takes longer than `waiting_s`, and much longer than those before it."""
    if limits.waiting_s is None or run.open_age_ms is None or run.open_age_ms <= limits.waiting_s * 1000:
        return
    usual_ms = run.longest_step_ms
    if usual_ms is not None and run.open_age_ms <= LONG_FACTOR * usual_ms:
        return
    what = f"step {run.open_step} of run {run.run_id} has been training for {say_duration(run.open_age_ms)}"
    what += "; it is the first" if usual_ms is None else f"; the newest ones took at most {say_duration(usual_ms)}"
    remedy = "`rollbus trainer status` says what the backend does; a large model may simply need so long"
    yield Problem("long_step", f"run {run.run_id}", what, f"{remedy}; {RUNBOOK}#long-step")


def measure_no_signal(window: CurriculumState) -> float | None:
    """Return the share of a window's groups that have no signal; None for an empty window."""
    total, used = len(window.seen_group_ids), len(window.admitted_group_ids) + len(window.rejected_group_ids)
    return (total - used) / total if total else None


def find_no_signal(shares: Mapping[str, float | None], limits: AlarmLimits) -> Iterable[Problem]:
    """Yield each run whose groups hardly ever have a signal, whether it has made a step or not."""
    for run_id, share in shares.items():
        if limits.no_signal_share is not None and share is not None and share > limits.no_signal_share:
            what = f"{share:.0%} of the groups in the newest window of run {run_id} are without a signal"
            remedy = "all answers to a task get one reward: look at the reward, or choose other tasks"
            yield Problem("no_signal", f"run {run_id}", what, f"{remedy}; {RUNBOOK}#no-signal")
