"""Which recorded records are of forgotten episodes: by the ids they carry."""

from typing import Any


def is_forgotten(record: Any, episodes: frozenset[str]) -> bool:
    """Whether a record says that it is of one of these episodes, or of one below them."""
    ids = getattr(record, "episode_id", None), getattr(record, "root_episode_id", None)
    return not episodes.isdisjoint(ids)
