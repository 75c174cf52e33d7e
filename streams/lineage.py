"""Versions and their parents to lags: how many completed steps lie between the weights that sampled and the newest.

The newest version is the one last made a candidate or put into service; after a rollback, its parent.
"""

from collections.abc import Mapping

NO_PARENT = -1


class Lineage:
    """The path from the newest version back along parents."""

    def __init__(self, parents: Mapping[int, int], newest: int | None) -> None:
        """`parents` gives the parent of each known version, NO_PARENT for a base model."""
        self.newest = newest
        self._parents = parents
        self._lags: dict[int, int] = {}
        version, lag = newest, 0
        while version is not None and version != NO_PARENT and version not in self._lags:
            self._lags[version] = lag
            version, lag = parents.get(version), lag + 1

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
