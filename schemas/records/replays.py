"""The record that makes a replay visible: its input, its configuration and code, and its output.

Readers use a replay's namespace only when `replays` holds a manifest of it with the state `complete`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

ReplayState = Literal["started", "following", "complete", "deleted"]
ReplayFeedback = Literal["recorded", "end"]
ReplayScores = Literal["recorded", "computed", "rescored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRange:
    """Offsets from_offset … to_offset − 1 of a partition of a recorded topic."""

    topic: str
    """Without the namespace."""
    partition: int
    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """A stage's configuration that this replay used instead of the recorded one."""

    stage: str
    run_id: str | None = None
    config_hash: str
    content: str
    """Canonical JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDigest:
    """The output of one stage, summarised."""

    stage: str
    """`assembly`, …, `grouping.<run>`."""
    records_in: int
    """Records, ticks and configurations."""
    records_out: int
    dead_letters: int
    digest: str
    """SHA-256 over the outputs of each input partition in order, locations left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayManifest:
    """One replay; the newest record of its name is valid."""

    name: str
    """The Kafka key."""
    namespace: str
    """Prefix of its topics: `replay-<name>.` and that of the log."""
    source_namespace: str
    state: ReplayState
    stages: tuple[str, ...]
    """In order; the first stage read the recorded topics."""
    ranges: tuple[ReplayRange, ...]
    missing: tuple[ReplayRange, ...] = ()
    """Requested parts that no longer exist; the operator allowed the replay to go on without them."""
    from_ms: int | None = None
    """Stream time of the first tick of the range; None without a tick."""
    to_ms: int | None = None
    """Stream time of the last."""
    rewards: ReplayFeedback = "recorded"
    """`end`: every episode had its rewards as of the range's end."""
    scores: ReplayScores = "recorded"
    """Whether scores are the recorded ones, computed by functions without outside calls, or requested again."""
    overrides: tuple[ReplayConfig, ...] = ()
    code_hash: str = ""
    """Of the modules that decide; different code may give different bytes."""
    version: str = ""
    """Release of rollbus."""
    exclusions: int = 0
    """Position in `exclusions` up to which the list was read before the first record."""
    digests: tuple[StageDigest, ...] = ()
    records: Mapping[str, int] = field(default_factory=dict)
    """Frames written, by topic without namespace."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """Defaults for what the log does not record, by hash: `assembly`, `scoring` and `run.<run>` are configurations,
    `rewards` and `rewards.<run>` the versions of the reward functions."""
    started_at_ms: int
    """By the clock of the machine that replayed; this and the next field are in no digest."""
    finished_at_ms: int | None = None
