"""Versions and their parents give lags: the completed steps between the weights that sampled and the newest weights.

The newest version is the one last made a candidate or put into service; after a rollback, its parent.
"""

from collections.abc import Mapping

from rollbus.schemas.records.lineage import lags_from

NO_PARENT = -1
MOST_UNANNOUNCED = 1_000
"""How far above all known ones a version may be that no record has announced yet: numbers have gaps."""


class VersionPath:
    """The path from the newest version back along parents."""

    def __init__(self, parents: Mapping[int, int], newest: int | None) -> None:
        """`parents` gives the parent of each known version, NO_PARENT for a base model."""
        self.newest = newest
        self._parents = parents
        known_parents = {version: None if parent == NO_PARENT else parent for version, parent in parents.items()}
        self._lags = lags_from(None if newest == NO_PARENT else newest, known_parents)

    def lag(self, version: int) -> int | None:
        """Return the completed steps since `version`; None if it is not an ancestor of the newest.

        A version a little above all known ones is new and not announced yet: lag 0. A version below the oldest known
        one is older than the log: it lags by more than all of these.
        """
        if self.newest is None:
            return 0
        if version in self._lags:
            return self._lags[version]
        versions = self._parents.keys() | self._lags.keys()
        if version > max(versions):
            return 0 if version <= max(versions) + MOST_UNANNOUNCED else None
        return len(self._lags) if version < min(versions) else None
