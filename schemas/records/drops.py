"""Units that were dropped, bytes that could not be read, and producers' losses: nothing disappears quietly.

A record that was written again from its dead letter has two headers: the number of its attempt, and its origin.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from rollbus.schemas.limits import MAX_LETTER_BYTES, MAX_LETTER_KEY_BYTES

PRODUCER_TOO_LARGE = "producer_too_large"
"""Reason of the Excluded event that a producer sends if it could not send all of an episode."""
DropUnit = Literal["event", "episode", "trajectory", "group"]
ATTEMPT_HEADER = "rollbus-attempt"
"""A number in decimal digits; a record without it is tried for the first time."""
ORIGIN_HEADER = "rollbus-origin"
"""`topic:partition:offset` of the original record."""

Headers = Iterable[tuple[str, bytes | None]]
"""Kafka lets the value of a header be null."""


class DropReason(StrEnum):
    """Every reason code, so that SQL can count them."""

    DUPLICATE_CONFLICT = "duplicate_conflict"
    """An event with a known id and other content."""
    LATE_EVENT = "late_event"
    """It came after its episode had been assembled."""
    ORPHANED_REWARD = "orphaned_reward"
    """Its episode was never seen, or is past `late_horizon`."""
    UNRESOLVED_ALIAS = "unresolved_alias"
    REWARD_NOT_ALLOWED = "reward_not_allowed"
    """Its source may not set the reward of this name."""
    TOO_MANY_REPORTS = "too_many_reports"
    """Its principal has reported more on this episode than `max_reports` or `max_reports_per_name` lets one."""
    MISSING_EVENTS = "missing_events"
    """An event is missing by its writer's count, or the start of the episode is."""
    UNFINISHED = "unfinished"
    """Its agent was killed or cut off: no end came, and no reward after its last turn."""
    TOO_LARGE = "too_large"
    """It, or a turn of it, is above the limit on records."""
    NO_TURNS = "no_turns"
    TOO_SHORT = "too_short"
    """Below `min_episode_length`."""
    NOT_TARGETED = "not_targeted"
    """Outside `target_functions` or `target_model`, or the run's filter."""
    UNTRAINABLE = "untrainable"
    """No turn has tokens and log-probs; the detail names the turn's reason."""
    EXCLUDED = "excluded"
    SCORE_FAILED = "score_failed"
    SCORE_MISSING = "score_missing"
    OVERLONG = "overlong"
    INCOMPLETE_GROUP = "incomplete_group"
    GROUP_CLOSED = "group_closed"
    """It came after its group had closed."""
    GROUP_MISMATCH = "group_mismatch"
    """Its prompt, tool schema or model differs from that of the group it names."""
    NO_SIGNAL = "no_signal"
    """All rewards of the group equal, within `min_reward_diff`."""
    CURRICULUM = "curriculum"
    """Outside the window's percentile, pool or subsample."""
    SUPERSEDED = "superseded"
    """Newer groups came before a batch had room for it."""
    STALE = "stale"
    """Older than `max_off_policy_steps`."""
    OFF_LINEAGE = "off_lineage"
    """Sampled by weights that are not ancestors of the base."""
    TEMPERATURE = "temperature"
    """Sampled at another temperature than the log-probs are of, or than the backend trains at."""
    SAMPLING = "sampling"
    """Sampled with top_p, top_k, min_p or a penalty: from another distribution than the one its log-probs are of."""
    PAYLOAD_LOST = "payload_lost"
    """Its location no longer holds it."""
    REJECTED_BY_BACKEND = "rejected_by_backend"
    SOURCE_SHARE = "source_share"
    """Its source has more of the batch than `max_share_per_source` lets one have, or its principal has more of what
    waits for a batch than its turn allows while other principals wait."""
    RUN_STOPPED = "run_stopped"
    RUN_REMOVED = "run_removed"
    """Its run is no longer in the settings: a fate that follows from the run's log, without a record of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """One unit that was dropped."""

    unit: DropUnit
    unit_id: str
    """The Kafka key."""
    reason: str
    """A DropReason."""
    stage: str
    run_id: str | None = None
    """None for the stages of the namespace."""
    trajectory_ids: tuple[str, ...] = ()
    """The trajectories whose fate this decides."""
    detail: str = ""
    dropped_at_ms: int
    """Stream time; the trainer's clock for drops of the trainer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Bytes that could not be processed; of a large value the two ends."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None = None
    """A very long key is cut."""
    value: bytes | None = None
    """Whole if it has `value_bytes` bytes; else its first and its last bytes, the same number of each."""
    value_bytes: int = 0
    value_sha256: str = ""
    """Of the whole value; empty without a value."""
    stage: str
    error_class: str
    message: str
    attempt: int = 1
    app_version: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether the letter has all bytes of key and value."""
        return len(self.value or b"") == self.value_bytes and len(self.key or b"") < MAX_LETTER_KEY_BYTES


SET_ASIDE = "SetAside"
"""Class of the letter by which an operator sets a record aside for good: its stage is `operator`, its message why."""


def is_set_aside(letter: Any) -> bool:
    """Say whether this letter is an operator's: what it names stays as it is, and no longer counts."""
    return isinstance(letter, DeadLetter) and letter.error_class == SET_ASIDE and letter.stage == "operator"


def kept_bytes(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """Return a dead letter's fields of a record's key and value, cut so that the letter fits into its topic."""
    cut_value, half = value, MAX_LETTER_BYTES // 2
    if value is not None and len(value) > MAX_LETTER_BYTES:
        cut_value = value[:half] + value[-half:]
    return {
        "key": key and key[:MAX_LETTER_KEY_BYTES],
        "value": cut_value,
        "value_bytes": len(value or b""),
        "value_sha256": "" if value is None else hashlib.sha256(value).hexdigest(),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerReport:
    """A producer's own counters, which show its losses."""

    producer: str
    """The Kafka key."""
    writer_id: str
    counters: Mapping[str, int] = field(default_factory=dict)
    reported_at_ms: int


def attempt_of(headers: Headers) -> int:
    """Return the number of a record's attempt; 1 if the header is missing or cannot be read."""
    for name, value in headers:
        if name == ATTEMPT_HEADER and value is not None and value.isdigit() and len(value) < 10:
            return int(value)
    return 1


def origin_of(headers: Headers) -> str | None:
    """Return the place of the original of a copy; None for a record that is not a copy."""
    origins = (value for name, value in headers if name == ORIGIN_HEADER and value is not None)
    return next((value.decode(errors="replace") for value in origins), None)
