"""Records to digests that say whether two replays, or a replay and live, made the same: locations are left out."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from rollbus.schemas.avro_compiled import long_bytes
from rollbus.schemas.groups import ClosedGroup, Group, TrainingBatch
from rollbus.schemas.trajectories import Location, Score

NOWHERE = Location(topic="", partition=0, offset=0)
_LOCATED = frozenset((Score, Group, ClosedGroup, TrainingBatch))
"""What names locations."""


def without_location(record: Any) -> Any:
    """Return the record with every location blank; the record itself where it has none."""
    if isinstance(record, Score):
        return replace(record, location=NOWHERE)
    if isinstance(record, Group):
        return replace(record, members=tuple(replace(member, location=NOWHERE) for member in record.members))
    if isinstance(record, TrainingBatch):
        return replace(record, groups=tuple(map(without_location, record.groups)))
    if isinstance(record, ClosedGroup):
        return replace(record, group=without_location(record.group))
    return record


def bytes_without_location(record: Any, data: bytes) -> bytes:
    """Return an encoded record with its locations cut out: cheaper than to encode it again without them."""
    if type(record) not in _LOCATED:
        return data
    kept, at = [], 0
    for location in _locations(record):  # they stand in this order
        encoded = _place(location.topic, location.partition) + long_bytes(location.offset)
        found = data.find(encoded, at)
        if found >= 0:
            kept.append(data[at:found])
            at = found + len(encoded)
    kept.append(data[at:])
    return b"".join(kept)


def _locations(record: Any) -> Iterator[Location]:
    if isinstance(record, Score):
        yield record.location
    elif isinstance(record, Group):
        for member in record.members:
            yield member.location
    elif isinstance(record, ClosedGroup):
        yield from _locations(record.group)
    elif isinstance(record, TrainingBatch):
        for group in record.groups:
            yield from _locations(group)


@lru_cache(maxsize=4_096)
def _place(topic: str, partition: int) -> bytes:
    """Return the beginning of a location as Avro has it: a string and a long; one more follows."""
    name = topic.encode()
    return b"".join((long_bytes(len(name)), name, long_bytes(partition)))


class Digest:
    """What one stage made of one input partition, so far."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.records = 0

    def add(self, topic: str, key: str, record: Any, data: bytes) -> None:
        """Take in one output and its bytes."""
        data = bytes_without_location(record, data)
        self._hash.update(f"{topic}\x1f{key}\x1f{len(data)}\x1f".encode())
        self._hash.update(data)
        self.records += 1

    def value(self) -> bytes:
        """Return the hash of everything so far."""
        return self._hash.digest()


@dataclass(frozen=True, slots=True)
class ToldDigest:
    """A digest that another process has come to."""

    told: bytes

    def value(self) -> bytes:
        """Return the hash of everything."""
        return self.told


def combined(digests: Iterable[Digest | ToldDigest]) -> str:
    """Return one hash for the digests of a stage's input partitions."""
    whole = hashlib.sha256()
    for digest in digests:
        whole.update(digest.value())
    return whole.hexdigest()[:32]
