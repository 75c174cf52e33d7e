"""The topics: one row each, for all code that creates, checks, writes, reads or draws them.

A topic's real name is the namespace prefix plus the name here: `rollbus.` + `episode-events`.
"""

from dataclasses import dataclass
from typing import Literal

from rollbus.schemas.namespaces import DEFAULT_NAMESPACE
from rollbus.schemas.records import (
    control,
    data_sets,
    delivery,
    drops,
    events,
    groups,
    health,
    replays,
    steps,
    trajectories,
)

Retention = Literal["time", "forever", "compact"]
Partitions = Literal["events", "one"]


@dataclass(frozen=True, slots=True)
class Topic:
    """One row of the topology."""

    name: str
    key: str
    """What the Kafka key is, in words."""
    records: tuple[type, ...]
    written_by: tuple[str, ...]
    read_by: tuple[str, ...]
    """First the stage that decides on its records, then the other readers."""
    partitions: Partitions
    """`events`: as many as configured, the same for all such topics; `one`: a single partition keeps a run's order."""
    retention: Retention

    @property
    def is_open(self) -> bool:
        """Whether producers write into it, so that its records of control need a signature."""
        return "producers" in self.written_by

    def full_name(self, namespace: str = DEFAULT_NAMESPACE) -> str:
        """Return the name on the broker."""
        return namespace + self.name


EPISODE_EVENTS = Topic(
    "episode-events",
    "root episode id",
    (
        events.EpisodeStarted,
        events.TurnRecorded,
        events.ToolCalled,
        events.RewardReported,
        events.EpisodeEnded,
        events.WriterClosed,
        events.Excluded,
        control.Tick,
        control.ConfigApplied,
    ),
    ("producers", "alias", "ticker"),
    ("assembly",),
    "events",
    "time",
)
ALIASES = Topic(
    "aliases",
    "alias",
    (
        events.AliasDeclared,
        events.EpisodeStarted,
        events.TurnRecorded,
        events.ToolCalled,
        events.RewardReported,
        events.EpisodeEnded,
        events.WriterClosed,
        events.Excluded,
        control.Tick,
        control.ConfigApplied,
    ),
    ("producers", "ticker"),
    ("alias",),
    "events",
    "time",
)
TRAJECTORIES = Topic(
    "trajectories",
    "group hint",
    (trajectories.Trajectory, trajectories.RewardRevised, control.Tick, control.ConfigApplied),
    ("assembly", "ticker"),
    ("scoring", "group-scoring", "resample", "trainer"),
    "events",
    "time",
)
SCORES = Topic(
    "scores",
    "group hint",
    (trajectories.Score, control.Tick, control.ConfigApplied),
    ("scoring", "ticker"),
    ("grouping", "trainer"),
    "events",
    "time",
)
CLOSED_GROUPS = Topic(
    "closed-groups",
    "group id",
    (groups.ClosedGroup, control.Tick, control.ConfigApplied),
    ("grouping", "ticker"),
    ("group-scoring",),
    "events",
    "time",
)
RESAMPLE_REQUESTS = Topic(
    "resample-requests", "episode id", (groups.ResampleRequested,), ("resample",), ("resample agent",), "one", "time"
)
RUN_LOG = Topic(
    "run-log",
    "run id",
    (groups.Group, groups.StepOutcome, steps.PolicyVersion, control.RunCommand, control.Tick, control.ConfigApplied),
    ("grouping", "group-scoring", "trainer", "operator", "delivery", "ticker"),
    ("curriculum", "trainer"),
    "one",
    "forever",
)
CURRICULUM = Topic("curriculum", "run id", (groups.CurriculumState,), ("curriculum",), (), "one", "forever")
BATCHES = Topic("batches", "run id", (groups.TrainingBatch,), ("curriculum",), ("trainer",), "one", "forever")
TRAINING_STEPS = Topic(
    "training-steps",
    "run id",
    (steps.StepStarted, steps.StepCompleted, steps.StepSkipped, steps.StepFailed),
    ("trainer",),
    ("trainer",),
    "one",
    "forever",
)
POLICY_VERSIONS = Topic(
    "policy-versions",
    "model",
    (steps.PolicyVersion,),
    ("trainer", "operator", "delivery"),
    ("trainer",),
    "one",
    "forever",
)
DELIVERY_LOG = Topic(
    "delivery-log",
    "run id",
    (
        delivery.EpisodeObserved,
        delivery.DeliveryCommand,
        steps.PolicyVersion,
        steps.Evaluation,
        control.Tick,
        control.ConfigApplied,
    ),
    ("observing", "trainer", "operator", "ticker"),
    ("delivery",),
    "one",
    "time",
)
POLICY_DECISIONS = Topic(
    "policy-decisions",
    "model",
    (delivery.PolicyDecision,),
    ("delivery",),
    ("art-server", "proxy", "operator"),
    "one",
    "forever",
)
EVALUATIONS = Topic(
    "evaluations", "run id", (steps.Evaluation,), ("trainer", "operator"), ("trainer",), "one", "forever"
)
REPLAYS = Topic("replays", "replay name", (replays.ReplayManifest,), ("replay",), ("trainer",), "one", "forever")
EXCLUSIONS = Topic(
    "exclusions", "episode id", (events.Excluded,), ("operator",), ("replay", "trainer"), "one", "forever"
)
DATA_SETS = Topic("data-sets", "data set", (data_sets.DataSetMember,), ("operator",), (), "one", "forever")
PRODUCER_REPORTS = Topic("producer-reports", "producer", (drops.ProducerReport,), ("producers",), (), "one", "time")
DROPS = Topic("drops", "unit id", (drops.Drop,), ("any stage",), (), "events", "forever")
DEAD_LETTERS = Topic("dead-letters", "origin key", (drops.DeadLetter,), ("any consumer",), (), "one", "time")

TOPICS: tuple[Topic, ...] = tuple(constant for constant in tuple(globals().values()) if isinstance(constant, Topic))
"""All topics above: those of data, which the sink, an archive and a replay read."""
HEARTBEATS = Topic(
    "heartbeats", "process", (health.Heartbeat,), ("every process",), ("status", "alarms"), "one", "compact"
)
"""Not a topic of data, hence below: it keeps only the newest beat of each process."""
RECORDS: tuple[type, ...] = tuple(dict.fromkeys(record for topic in (*TOPICS, HEARTBEATS) for record in topic.records))
"""Every record type that travels on a topic."""

STAGE_INPUTS: dict[str, Topic] = {
    "alias": ALIASES,
    "assembly": EPISODE_EVENTS,
    "scoring": TRAJECTORIES,
    "resample": TRAJECTORIES,
    "grouping": SCORES,
    "group-scoring": CLOSED_GROUPS,
    "curriculum": RUN_LOG,
    "observing": SCORES,
    "delivery": DELIVERY_LOG,
}
"""The one input topic of each stage, in the order of the flow; the ticker writes into all that are in use."""
CONFIGURED: dict[str, tuple[Topic, ...]] = {
    stage: (topic,) for stage, topic in STAGE_INPUTS.items() if stage not in ("alias", "assembly")
} | {"assembly": (EPISODE_EVENTS, ALIASES, TRAJECTORIES)}
"""The topics that a stage's configuration is written into. Alias and scoring need assembly's late horizon, and
read only their own inputs."""
ONLY_WHERE_CONFIGURED = frozenset({"group-scoring", "resample", "observing", "delivery"})
"""Stages that get no records and no ticks unless a run's configuration asks for them."""


_BY_NAME = {topic.name: topic for topic in (*TOPICS, HEARTBEATS)}


def topic_of(name: str) -> Topic:
    """Return the row of a topic by its name without namespace; raises KeyError for an unknown one."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise KeyError(f"no topic {name!r}; there are {', '.join(sorted(_BY_NAME))}") from None
