"""Data sets: trajectories that a person has picked by name, to be exported later."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSetMember:
    """One trajectory was put into a data set, or taken out of it; of several the newest holds."""

    data_set: str
    trajectory_id: str
    episode_id: str
    is_member: bool = True
    changed_at_ms: int
