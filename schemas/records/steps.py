"""The ledger: what each step trained, the weights that resulted, and how many steps lie between two versions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

PolicyState = Literal["candidate", "canary", "serving", "rejected", "quarantined", "rolled_back"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted:
    """The trainer started on a batch."""

    run_id: str
    """The Kafka key."""
    model: str
    step: int
    """Counts from 1 without gaps; failed attempts share their step's number."""
    attempt: int
    batch_hash: str
    batch_number: int
    base_version: int
    started_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedMember:
    """A trajectory of a batch that was not trained."""

    trajectory_id: str
    group_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedMember:
    """A trajectory that was trained, and how stale it was."""

    trajectory_id: str
    group_id: str
    lag: int
    """Completed steps from its oldest turn's version to the base."""
    advantage: float
    sampled_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCompleted:
    """One batch became one GRPO update."""

    run_id: str
    """The Kafka key."""
    model: str
    step: int
    batch_hash: str
    batch_number: int
    base_version: int
    policy_version: int
    trained: tuple[TrainedMember, ...]
    dropped: tuple[DroppedMember, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    started_at_ms: int
    completed_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSkipped:
    """A batch without anything to train; the weights are unchanged."""

    run_id: str
    """The Kafka key."""
    model: str
    step: int
    batch_hash: str
    batch_number: int
    base_version: int
    reason: str
    dropped: tuple[DroppedMember, ...] = ()
    started_at_ms: int
    completed_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailed:
    """One attempt at a batch failed."""

    run_id: str
    """The Kafka key."""
    model: str
    step: int
    attempt: int
    batch_hash: str
    batch_number: int
    base_version: int
    error_class: str
    message: str
    final: bool
    """True for the last attempt: the run stops here."""
    failed_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """Weights under a number, and their origin."""

    model: str
    """The Kafka key."""
    version: int
    """Number of the weights directory, as served in `name@version`; grows, with gaps."""
    parent: int | None = None
    """None for the base model."""
    run_id: str | None = None
    step: int | None = None
    batch_hash: str | None = None
    checkpoint: str = ""
    state: PolicyState
    reason: str | None = None
    changed_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A policy version measured on held-out tasks."""

    evaluation_id: str
    model: str
    policy_version: int
    run_id: str | None = None
    """The Kafka key is the run id, or the model without one."""
    name: str
    episodes: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Shares and means by name; intervals as `<name>_low` and `<name>_high` (95 %)."""
    seed: int | None = None
    set_hash: str | None = None
    """Hash of the set of tasks; only evaluations of one set are compared."""
    evaluated_at_ms: int


def lags_from(base: int | None, parents: Mapping[int, int | None]) -> dict[int, int]:
    """Return the lag of the base and of each ancestor, along parents; a circle of parents is walked once."""
    lags: dict[int, int] = {}
    version = base
    while version is not None and version not in lags:
        lags[version] = len(lags)
        version = parents.get(version)
    return lags
