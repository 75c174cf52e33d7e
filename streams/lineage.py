"""Versions and their parents to lags: how many completed steps lie between the weights that sampled and the newest.

The newest version is the one last made a candidate or put into service; after a rollback, its parent.
"""

from collections.abc import Mapping

from rollbus.schemas.lineage import lags_from

NO_PARENT = -1


class Lineage:
    """The path from the newest version back along parents."""

    def __init__(self, parents: Mapping[int, int], newest: int | None) -> None:
        """`parents` gives the parent of each known version, NO_PARENT for a base model."""
        self.newest = newest
        self._parents = parents
        known = {version: None if parent == NO_PARENT else parent for version, parent in parents.items()}
        self._lags = lags_from(None if newest == NO_PARENT else newest, known)

    def lag(self, version: int) -> int | None:
        """Return completed steps since `version`; None where it is no ancestor of the newest.

        A version above all that are known is new and just not announced yet: lag 0. One below the oldest known lies
        before what the log tells: it lags by more than all of these.
        """
        if self.newest is None:
            return 0
        if version in self._lags:
            return self._lags[version]
        known = self._parents.keys() | self._lags.keys()
        if version > max(known):
            return 0
        return len(self._lags) if version < min(known) else None
