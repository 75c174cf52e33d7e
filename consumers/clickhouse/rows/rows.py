"""A record and its place in the log → the rows that keep it. Pure.

`FILLS` names the tables that get one row of each record, column by column; `PARTS` names the tables for what a record
holds, such as the members of a group. A record type is in `FILLS` or in `NOT_STORED`, with the reason.
"""

from collections.abc import Callable, Iterable
from typing import Any

from rollbus.consumers.clickhouse.rows import events, operations, runs, steps, trajectories
from rollbus.consumers.clickhouse.store.fills import Fill
from rollbus.consumers.clickhouse.store.origin import Origin, Rows
from rollbus.schemas.records.control import ConfigApplied, RunCommand, Tick, is_control
from rollbus.schemas.records.data_sets import DataSetMember
from rollbus.schemas.records.delivery import DeliveryCommand, EpisodeObserved, PolicyDecision
from rollbus.schemas.records.drops import DeadLetter, Drop, ProducerReport
from rollbus.schemas.records.events import (
    AliasDeclared,
    EpisodeEnded,
    EpisodeStarted,
    Excluded,
    RewardReported,
    ToolCalled,
    TurnRecorded,
    WriterClosed,
)
from rollbus.schemas.records.groups import (
    ClosedGroup,
    CurriculumState,
    Group,
    ResampleRequested,
    StepOutcome,
    TrainingBatch,
)
from rollbus.schemas.records.health import Heartbeat
from rollbus.schemas.records.replays import ReplayManifest
from rollbus.schemas.records.steps import Evaluation, PolicyVersion, StepCompleted, StepFailed, StepSkipped, StepStarted
from rollbus.schemas.records.trajectories import RewardRevised, Score, Trajectory
from rollbus.schemas.topics import ALIASES, TOPICS

FILLS: dict[type, tuple[Fill, ...]] = {
    EpisodeStarted: (events.EVENTS, events.EPISODES),
    TurnRecorded: (events.EVENTS, events.TURNS, events.TURN_TOKENS),
    ToolCalled: (events.EVENTS, events.TOOL_CALLS),
    RewardReported: (events.EVENTS, events.REWARDS),
    EpisodeEnded: (events.EVENTS, events.EPISODE_ENDS),
    WriterClosed: (events.EVENTS,),
    Excluded: (events.EVENTS,),
    AliasDeclared: (events.EVENTS,),
    Trajectory: (trajectories.TRAJECTORIES,),
    RewardRevised: (trajectories.REWARD_REVISIONS,),
    Score: (trajectories.SCORES,),
    Group: (runs.GROUPS,),
    CurriculumState: (runs.CURRICULUM_STATES,),
    TrainingBatch: (runs.BATCHES,),
    StepOutcome: (steps.STEP_OUTCOMES,),
    StepStarted: (steps.STEPS,),
    StepCompleted: (steps.STEPS,),
    StepSkipped: (steps.STEPS,),
    StepFailed: (steps.STEPS,),
    PolicyVersion: (steps.POLICY_VERSIONS,),
    PolicyDecision: (steps.POLICY_DECISIONS,),
    Evaluation: (steps.EVALUATIONS,),
    ConfigApplied: (operations.CONFIG_APPLIED,),
    RunCommand: (operations.RUN_COMMANDS,),
    Drop: (operations.DROPS,),
    DeadLetter: (operations.DEAD_LETTERS,),
    ProducerReport: (operations.PRODUCER_REPORTS,),
    ReplayManifest: (operations.REPLAYS,),
    DataSetMember: (operations.DATA_SET_MEMBERS,),
}

PARTS: dict[type, tuple[tuple[str, ...], Callable[[Any, Origin], Rows]]] = {
    Trajectory: (("trajectory_turns", "trajectory_rewards", "histories"), trajectories.trajectory_parts),
    RewardRevised: (("trajectory_rewards",), trajectories.revised_rewards),
    Score: (("turn_rewards",), trajectories.turn_rewards),
    Group: (("group_members",), runs.group_members),
    TrainingBatch: (("batch_groups",), runs.batch_groups),
    StepCompleted: (("step_members",), steps.step_members),
    StepSkipped: (("step_members",), steps.step_members),
    Drop: (("drop_trajectories",), operations.drop_trajectories),
}

NOT_STORED: dict[type, str] = {
    EpisodeObserved: "the score that it is taken from is stored",
    DeliveryCommand: "the decision that follows names the command and its reason",
    ResampleRequested: "what comes of it is an episode whose `resampled` is true",
    ClosedGroup: "the same group follows in the run's log, with all its rewards, or as a drop",
    Heartbeat: "health is of the moment: its topic keeps the newest beat of each process, and no sink reads it",
    Tick: "one per second and partition; it carries only the time, which every other row has",
}


def fills_of(record: Any, topic: str = "") -> tuple[Fill, ...]:
    """Return the tables that get a row of this record; raises InvalidRecordError for tokens that cannot be read.

    Control in a topic that producers write gets none: it may be forged, and the owner's own topics have it too. What
    resumes a paused episode comes again with the episode's id, and only then has rows in tables of its kind.
    """
    if topic in _OPEN and type(record) in _STORED_CONTROL and is_control(record):
        return ()
    if topic == ALIASES.name and type(record) is not RewardReported:
        return FILLS.get(type(record), ())[:1]
    if type(record) is TurnRecorded and not events.has_tokens(record):
        return FILLS[TurnRecorded][:-1]
    return FILLS.get(type(record), ())


_OPEN = frozenset(topic.name for topic in TOPICS if topic.is_open)
_STORED_CONTROL = (ConfigApplied, Excluded)


def part_rows(record: Any, origin: Origin) -> Rows:
    """Return the rows of what a record holds; raises InvalidRecordError for tokens that cannot be read."""
    if type(record) not in PARTS:
        return []
    _, make_rows = PARTS[type(record)]
    return make_rows(record, origin)


def tables_of(record: type) -> tuple[str, ...]:
    """Return the tables that a record type can have rows in."""
    tables = tuple(fill.table for fill in FILLS.get(record, ()))
    return (*tables, *PARTS[record][0]) if record in PARTS else tables


def topics_of(tables: Iterable[str]) -> tuple[str, ...]:
    """Return the topics that have rows in any of these tables; any record can become a dead letter."""
    table_names = set(tables)
    return tuple(
        topic.name
        for topic in TOPICS
        if "dead_letters" in table_names or any(table_names.intersection(tables_of(record)) for record in topic.records)
    )
