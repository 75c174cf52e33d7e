"""The topics: one row each, read by everything that creates, checks, writes, reads or draws them.

A topic's real name is the namespace prefix plus the name here: `rollbus.` + `episode-events`.
"""

import re
from dataclasses import dataclass
from typing import Literal

from rollbus.schemas.control import ConfigApplied, RunCommand, Tick
from rollbus.schemas.drops import DeadLetter, Drop, ProducerReport
from rollbus.schemas.events import (
    AliasDeclared,
    EpisodeEnded,
    EpisodeStarted,
    Excluded,
    RewardReported,
    ToolCalled,
    TurnRecorded,
    WriterClosed,
)
from rollbus.schemas.groups import ClosedGroup, CurriculumState, Group, ResampleRequested, StepOutcome, TrainingBatch
from rollbus.schemas.replays import ReplayManifest
from rollbus.schemas.steps import (
    Evaluation,
    PolicyVersion,
    StepCompleted,
    StepFailed,
    StepSkipped,
    StepStarted,
)
from rollbus.schemas.trajectories import RewardRevised, Score, Trajectory

DEFAULT_NAMESPACE = "rollbus."
MAX_RECORD_BYTES = 900_000
"""A larger record is split into chunks; leaves room for keys, headers and batch framing below 1 MiB."""
MAX_MESSAGE_BYTES = 1_572_864
"""Topic limit and largest request: room above MAX_RECORD_BYTES for a compressed batch's overhead."""

_KAFKA_NAME = re.compile(r"[a-zA-Z0-9._-]{0,120}")
"""Kafka's own letters; its names have at most 249, and behind a namespace stand those of topics, stages and runs."""

Retention = Literal["time", "forever", "compact"]
Partitions = Literal["events", "one"]


def wrong_namespace(namespace: str) -> str | None:
    """Say what keeps a text from beginning the names of topics; None where nothing does."""
    if _KAFKA_NAME.fullmatch(namespace):
        return None
    return "Kafka's names are of letters, digits, `.`, `_` and `-`, here at most 120"


@dataclass(frozen=True, slots=True)
class Topic:
    """One row of the topology."""

    name: str
    key: str
    """What the Kafka key is, in words."""
    records: tuple[type, ...]
    written_by: tuple[str, ...]
    read_by: tuple[str, ...]
    """The one stage that decides on it, and who follows it."""
    partitions: Partitions
    """`events`: as many as configured, the same for all such topics; `one`: a single partition keeps a run's order."""
    retention: Retention

    def full_name(self, namespace: str = DEFAULT_NAMESPACE) -> str:
        """Return the name on the broker."""
        return namespace + self.name


EPISODE_EVENTS = Topic(
    "episode-events",
    "root episode id",
    (
        EpisodeStarted,
        TurnRecorded,
        ToolCalled,
        RewardReported,
        EpisodeEnded,
        WriterClosed,
        Excluded,
        Tick,
        ConfigApplied,
    ),
    ("producers", "alias", "ticker"),
    ("assembly",),
    "events",
    "time",
)
ALIASES = Topic(
    "aliases",
    "alias",
    (AliasDeclared, RewardReported, Tick, ConfigApplied),
    ("producers", "ticker"),
    ("alias",),
    "events",
    "time",
)
TRAJECTORIES = Topic(
    "trajectories",
    "group hint",
    (Trajectory, RewardRevised, Tick, ConfigApplied),
    ("assembly", "ticker"),
    ("scoring", "group-scoring", "resample", "trainer"),
    "events",
    "time",
)
SCORES = Topic(
    "scores",
    "group hint",
    (Score, Tick, ConfigApplied),
    ("scoring", "ticker"),
    ("grouping", "trainer"),
    "events",
    "time",
)
CLOSED_GROUPS = Topic(
    "closed-groups",
    "group id",
    (ClosedGroup, Tick, ConfigApplied),
    ("grouping", "ticker"),
    ("group-scoring",),
    "events",
    "time",
)
RESAMPLE_REQUESTS = Topic(
    "resample-requests", "episode id", (ResampleRequested,), ("resample",), ("resample agent",), "one", "time"
)
RUN_LOG = Topic(
    "run-log",
    "run id",
    (Group, StepOutcome, PolicyVersion, RunCommand, Tick, ConfigApplied),
    ("grouping", "group-scoring", "trainer", "operator", "ticker"),
    ("curriculum", "trainer"),
    "one",
    "forever",
)
CURRICULUM = Topic("curriculum", "run id", (CurriculumState,), ("curriculum",), (), "one", "forever")
BATCHES = Topic("batches", "run id", (TrainingBatch,), ("curriculum",), ("trainer",), "one", "forever")
TRAINING_STEPS = Topic(
    "training-steps",
    "run id",
    (StepStarted, StepCompleted, StepSkipped, StepFailed),
    ("trainer",),
    ("trainer",),
    "one",
    "forever",
)
POLICY_VERSIONS = Topic(
    "policy-versions", "model", (PolicyVersion,), ("trainer", "operator"), ("trainer",), "one", "forever"
)
EVALUATIONS = Topic("evaluations", "run id", (Evaluation,), ("trainer", "operator"), ("trainer",), "one", "forever")
REPLAYS = Topic("replays", "replay name", (ReplayManifest,), ("replay",), ("trainer",), "one", "forever")
EXCLUSIONS = Topic("exclusions", "episode id", (Excluded,), ("operator",), ("replay", "trainer"), "one", "forever")
PRODUCER_REPORTS = Topic("producer-reports", "producer", (ProducerReport,), ("producers",), (), "one", "time")
DROPS = Topic("drops", "unit id", (Drop,), ("any stage",), (), "events", "forever")
DEAD_LETTERS = Topic("dead-letters", "origin key", (DeadLetter,), ("any consumer",), (), "one", "time")

TOPICS: tuple[Topic, ...] = (
    EPISODE_EVENTS,
    ALIASES,
    TRAJECTORIES,
    SCORES,
    CLOSED_GROUPS,
    RESAMPLE_REQUESTS,
    RUN_LOG,
    CURRICULUM,
    BATCHES,
    TRAINING_STEPS,
    POLICY_VERSIONS,
    EVALUATIONS,
    REPLAYS,
    EXCLUSIONS,
    PRODUCER_REPORTS,
    DROPS,
    DEAD_LETTERS,
)

STAGE_INPUTS: dict[str, Topic] = {
    "alias": ALIASES,
    "assembly": EPISODE_EVENTS,
    "scoring": TRAJECTORIES,
    "resample": TRAJECTORIES,
    "grouping": SCORES,
    "group-scoring": CLOSED_GROUPS,
    "curriculum": RUN_LOG,
}
"""The one input topic of each stage, in the order of the flow; the ticker writes into all that are in use."""
CONFIGURED: dict[str, tuple[Topic, ...]] = {
    stage: (topic,) for stage, topic in STAGE_INPUTS.items() if stage not in ("alias", "assembly")
} | {"assembly": (EPISODE_EVENTS, ALIASES, TRAJECTORIES)}
"""The inputs that a stage's configuration is written into. Assembly's late horizon is also how long alias and scoring
remember, and they decide on their own input alone."""
ONLY_WHERE_CONFIGURED = frozenset({"group-scoring", "resample"})
"""Stages that nothing flows through, not even time, unless a run's configuration asks for them."""


_BY_NAME = {topic.name: topic for topic in TOPICS}


def topic_of(name: str) -> Topic:
    """Return the row of a topic by its name without namespace; raises KeyError for an unknown one."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise KeyError(f"no topic {name!r}; there are {', '.join(sorted(_BY_NAME))}") from None
