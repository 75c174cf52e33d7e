"""Which tables each record type can have rows in, and so which topics a table is made from. Pure."""

from collections.abc import Iterable

from rollbus.schemas import control, drops, events, groups, replays, steps, trajectories
from rollbus.schemas.topics import TOPICS

_EVENT = ("events",)
TABLES_OF: dict[type, tuple[str, ...]] = {
    events.EpisodeStarted: (*_EVENT, "episodes"),
    events.TurnRecorded: (*_EVENT, "turns", "turn_tokens"),
    events.ToolCalled: (*_EVENT, "tool_calls"),
    events.RewardReported: (*_EVENT, "rewards"),
    events.EpisodeEnded: (*_EVENT, "episode_ends"),
    events.WriterClosed: _EVENT,
    events.Excluded: _EVENT,
    events.AliasDeclared: _EVENT,
    trajectories.Trajectory: ("trajectories", "trajectory_turns", "trajectory_rewards", "histories"),
    trajectories.RewardRevised: ("reward_revisions", "trajectory_rewards"),
    trajectories.Score: ("scores",),
    groups.Group: ("groups", "group_members"),
    groups.CurriculumState: ("curriculum_states",),
    groups.TrainingBatch: ("batches", "batch_groups"),
    groups.StepOutcome: ("step_outcomes",),
    steps.StepStarted: ("steps",),
    steps.StepCompleted: ("steps", "step_members"),
    steps.StepSkipped: ("steps", "step_members"),
    steps.StepFailed: ("steps",),
    steps.PolicyVersion: ("policy_versions",),
    steps.Evaluation: ("evaluations",),
    control.ConfigApplied: ("config_applied",),
    control.RunCommand: ("run_commands",),
    drops.Drop: ("drops", "drop_trajectories"),
    drops.DeadLetter: ("dead_letters",),
    drops.ProducerReport: ("producer_reports",),
    replays.ReplayManifest: ("replays",),
}
"""The tables that a record type can have rows in."""


def topics_of(tables: Iterable[str]) -> tuple[str, ...]:
    """Return the topics that have rows in any of these tables; anything can become a dead letter."""
    wanted = set(tables)
    return tuple(
        topic.name
        for topic in TOPICS
        if "dead_letters" in wanted or any(wanted & set(TABLES_OF.get(record, ())) for record in topic.records)
    )
