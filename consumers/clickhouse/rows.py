"""A record and its place in the log → the rows that keep it: one function per record type, in one table.

Pure. A record type is in `MAKERS`, or in `NOT_STORED` with the reason; a test holds the two to the registry.
"""

from collections.abc import Callable
from typing import Any

from rollbus.consumers.clickhouse import rows_events, rows_operations, rows_runs, rows_steps, rows_trajectories
from rollbus.consumers.clickhouse.origin import Origin, Rows
from rollbus.schemas import control, drops, groups, replays, steps, trajectories

MAKERS: dict[type, Callable[[Any, Origin], Rows]] = {
    **dict.fromkeys(rows_events.FILLS, rows_events.event_rows),
    trajectories.Trajectory: rows_trajectories.trajectory,
    trajectories.RewardRevised: rows_trajectories.reward_revised,
    trajectories.Score: rows_trajectories.score,
    groups.Group: rows_runs.group,
    groups.CurriculumState: rows_runs.curriculum_state,
    groups.TrainingBatch: rows_runs.training_batch,
    groups.StepOutcome: rows_steps.step_outcome,
    steps.StepStarted: rows_steps.step_started,
    steps.StepCompleted: rows_steps.step_completed,
    steps.StepSkipped: rows_steps.step_skipped,
    steps.StepFailed: rows_steps.step_failed,
    steps.PolicyVersion: rows_steps.policy_version,
    steps.Evaluation: rows_steps.evaluation,
    control.ConfigApplied: rows_operations.config_applied,
    control.RunCommand: rows_operations.run_command,
    drops.Drop: rows_operations.drop,
    drops.DeadLetter: rows_operations.dead_letter,
    drops.ProducerReport: rows_operations.producer_report,
    replays.ReplayManifest: rows_operations.replay_manifest,
}

NOT_STORED: dict[type, str] = {
    groups.ResampleRequested: "what comes of it is an episode whose `resampled` is true",
    groups.ClosedGroup: "the same group follows in the run's log, with all its rewards, or as a drop",
    control.Tick: "one per second and partition; it carries nothing but the time, which every other row has",
}


def rows_of(record: Any, origin: Origin) -> Rows:
    """Return the rows of a record; none for those that are not stored."""
    record_type = type(record)
    return [] if record_type in NOT_STORED else MAKERS[record_type](record, origin)
