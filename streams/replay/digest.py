"""Records to digests that say whether two replays, or a replay and live, made the same: locations are left out."""

import hashlib
from dataclasses import replace
from typing import Any

from rollbus.schemas.codec import encode
from rollbus.schemas.groups import Group, TrainingBatch
from rollbus.schemas.trajectories import Location, Score

NOWHERE = Location(topic="", partition=0, offset=0)


def without_location(record: Any) -> Any:
    """Return the record with every location blank; the record itself where it has none."""
    if isinstance(record, Score):
        return replace(record, location=NOWHERE)
    if isinstance(record, Group):
        return replace(record, members=tuple(replace(member, location=NOWHERE) for member in record.members))
    if isinstance(record, TrainingBatch):
        return replace(record, groups=tuple(map(without_location, record.groups)))
    return record


def located(record: Any) -> bool:
    """Say whether a record names locations."""
    return isinstance(record, Score | Group | TrainingBatch)


class Digest:
    """What one stage made of one input partition, so far."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.records = 0

    def add(self, topic: str, key: str, record: Any, data: bytes) -> None:
        """Take in one output and its bytes."""
        if located(record):
            data = encode(without_location(record))
        self._hash.update(f"{topic}\x1f{key}\x1f{len(data)}\x1f".encode())
        self._hash.update(data)
        self.records += 1

    def value(self) -> bytes:
        """Return the hash of everything so far."""
        return self._hash.digest()


def combined(digests: list[Digest]) -> str:
    """Return one hash for the digests of a stage's input partitions."""
    whole = hashlib.sha256()
    for digest in digests:
        whole.update(digest.value())
    return whole.hexdigest()[:32]
