"""Progressive delivery: what a version's episodes were worth, what an operator says, and who serves from now on.

`route` is the one rule by which the endpoint, the recorder and the proxy choose a version, and by which the evidence
knows which episodes were left to chance.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

DeliveryAction = Literal["serve", "canary", "advance", "hold", "promote", "reject", "quarantine", "stop", "refuse"]
DeliveryCommandName = Literal["canary", "promote", "reject", "freeze", "unfreeze"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeObserved:
    """What the evidence needs of an episode's score; a later revision replaces an earlier one."""

    run_id: str
    """The Kafka key."""
    trajectory_id: str
    episode_id: str
    principal: str = ""
    """Who recorded its start, by a valid signature."""
    revision: int = 0
    task: str
    first_seen_ms: int
    """Stream time when its first event came: which version it got was decided by then."""
    served_versions: tuple[int, ...] = ()
    """Every policy version that answered one of its turns."""
    value: float | None = None
    """The score; None is a reward that is still outstanding, and not 0."""
    components: Mapping[str, float] = field(default_factory=dict)
    failed: bool = False
    tokens: int = 0
    """Sampled."""
    latency_ms: int | None = None
    """Of its slowest turn."""
    tool_errors: int = 0
    excluded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryCommand:
    """An operator's word on a version."""

    run_id: str
    """The Kafka key."""
    command: DeliveryCommandName
    version: int | None = None
    command_id: str
    seen_decision: int
    """Number of the newest decision that the operator knew; if there is a newer one, the command is refused."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDecision:
    """Who serves a model from now on, and the numbers that this was decided on. The newest one holds, alone."""

    model: str
    """The Kafka key."""
    run_id: str
    number: int
    """Counts from 1."""
    action: DeliveryAction
    version: int | None = None
    """The version that the action is about."""
    serving: int | None = None
    canary: int | None = None
    share: float = 0.0
    """Of the episodes, to the canary."""
    salt: str = ""
    """Key of the canary's draw: who does not know it cannot choose by an episode's id which version answers."""
    frozen: bool = False
    reason: str
    """A code, such as `worse:reward`; an operator's is `operator`."""
    detail: str = ""
    command_id: str | None = None
    """Of the command that it follows."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """By metric: `.effect`, `.low`, `.high` of canary − serving in the metric's own unit, and how many episodes."""
    decided_at_ms: int
    """Stream time."""
    config_hash: str = ""


def route(decision: PolicyDecision, episode_id: str) -> int | None:
    """Return the version that an episode gets; None if nothing was ever decided to serve."""
    canary = decision.canary
    if canary is not None and is_drawn(decision.model, canary, episode_id, decision.share, decision.salt):
        return canary
    return decision.serving


def is_drawn(model: str, canary: int, episode_id: str, share: float, salt: str = "") -> bool:
    """Say whether an episode is among the canary's share: always the same, and more episodes where the share grows."""
    hashed_name = f"{model}@{canary}\0{episode_id}".encode()
    return int.from_bytes(blake2b(hashed_name, digest_size=7, key=salt.encode()[:64]).digest(), "big") < share * 2**56
