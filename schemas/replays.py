"""What a replay read, under which configuration and code, and what came out: the record that makes it visible.

A replay's namespace counts only once a manifest of state `complete` stands in `replays`; before that nobody reads it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

ReplayState = Literal["started", "following", "complete", "deleted"]
ReplayRewards = Literal["recorded", "end"]
ReplayScores = Literal["recorded", "computed", "anew"]


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
    """A stage's configuration that this replay was told to use instead of the recorded one."""

    stage: str
    run_id: str | None = None
    config_hash: str
    content: str
    """Canonical JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDigest:
    """What one stage made, in one line."""

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
    """One replay; the newest record of its name holds."""

    name: str
    """The Kafka key."""
    namespace: str
    """Where its topics stand: `replay-<name>.`."""
    source_namespace: str
    state: ReplayState
    stages: tuple[str, ...]
    """In order; the first read what was recorded."""
    ranges: tuple[ReplayRange, ...]
    missing: tuple[ReplayRange, ...] = ()
    """Parts of what was asked for that no longer exist; the replay went on without them because it was told to."""
    from_ms: int | None = None
    """Stream time of the first tick of the range; None without a tick."""
    to_ms: int | None = None
    """Stream time of the last."""
    rewards: ReplayRewards = "recorded"
    """`end`: every episode had the rewards that stood at the range's end."""
    scores: ReplayScores = "recorded"
    """Whether scores are the recorded ones, computed by functions that ask nobody, or asked anew."""
    overrides: tuple[ReplayConfig, ...] = ()
    code_hash: str = ""
    """Of the modules that decide; another code may give other bytes."""
    version: str = ""
    """Release of rollbus."""
    exclusions: int = 0
    """Position in `exclusions` up to which the list was read before the first record."""
    digests: tuple[StageDigest, ...] = ()
    records: Mapping[str, int] = field(default_factory=dict)
    """Frames written, by topic without namespace."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """What held where the log told nothing else, by hash: `assembly`, `scoring` and `run.<run>` are configurations,
    `rewards` and `rewards.<run>` the versions of the reward functions."""
    started_at_ms: int
    """Of the clock of the machine that replayed; neither this nor the next stands in any digest."""
    finished_at_ms: int | None = None
