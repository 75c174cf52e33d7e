"""Policy versions as a tree: the parent of each, the lag between two, and what the next step starts from.

Lag counts completed steps along parents. A version that is not an ancestor of the base has no lag: an importance ratio
against abandoned weights says nothing about the weights in training.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rollbus.schemas.errors import DataLossError
from rollbus.schemas.records.steps import PolicyState, PolicyVersion, lags_from


@dataclass(slots=True)
class Lineage:
    """The versions of one model, folded from its `PolicyVersion` records in the order of the log."""

    parents: dict[int, int | None] = field(default_factory=dict)
    states: dict[int, PolicyState] = field(default_factory=dict)
    checkpoints: dict[int, str] = field(default_factory=dict)
    serving: int | None = None
    """The version that answers requests for the bare name, by the log."""
    newest: int | None = None
    """The version that was announced last for the first time."""

    def apply(self, record: PolicyVersion) -> None:
        """Apply a new version or a change of state; the same record again changes nothing."""
        if record.version not in self.parents:
            self.parents[record.version] = record.parent
            self.newest = record.version
        if self.states.get(record.version) != "rolled_back" or record.state == "serving":
            self.states[record.version] = record.state  # delivery may quarantine a version while it is rolled back
        self.checkpoints[record.version] = record.checkpoint or self.checkpoints.get(record.version, "")
        if record.state == "serving":
            self.serving = record.version
        elif record.version == self.serving:
            self.serving = None

    @property
    def head(self) -> int | None:
        """What the next step starts from: the newest version, or its nearest ancestor that was not rolled back."""
        version = self.newest
        while version is not None and self.states.get(version) == "rolled_back":
            version = self.parents.get(version)
        return version

    def lags(self, base: int) -> Mapping[int, int]:
        """Return the lag of every version from the base to the root; a version not in it is off the lineage."""
        if base not in self.parents:
            return {}
        lags = lags_from(base, self.parents)
        oldest = next(reversed(lags))
        if self.parents.get(oldest) is not None:
            raise DataLossError(f"policy version {oldest} is its own ancestor; look at the topic policy-versions")
        return {version: lag for version, lag in lags.items() if version in self.parents}
