"""Policy versions and their parents to lags: how many completed steps lie between one version and its ancestors."""

from collections.abc import Mapping


def lags_from(base: int | None, parents: Mapping[int, int | None]) -> dict[int, int]:
    """Return the lag of the base and of each ancestor, along parents; a circle of parents is walked once."""
    lags: dict[int, int] = {}
    version = base
    while version is not None and version not in lags:
        lags[version] = len(lags)
        version = parents.get(version)
    return lags
