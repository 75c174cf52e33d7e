"""Records to digests that say whether two replays, or a replay and live, made the same: locations are left out."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from rollbus.schemas.codec import encode_part
from rollbus.schemas.records.groups import ClosedGroup, Group, GroupMember, TrainingBatch
from rollbus.schemas.records.trajectories import Location, Score

NOWHERE = Location(topic="", partition=0, offset=0)
_LOCATED = frozenset((Score, Group, ClosedGroup, TrainingBatch))
"""What names locations."""


def without_location(record: Any) -> Any:
    """Return the record with every location blank; the record itself where it has none."""
    if isinstance(record, Score | GroupMember):
        revised_at, hints_at = record.revised_at and NOWHERE, record.hints_at and NOWHERE
        return replace(record, location=NOWHERE, revised_at=revised_at, hints_at=hints_at)
    if isinstance(record, Group):
        return replace(record, members=tuple(map(without_location, record.members)))
    if isinstance(record, TrainingBatch):
        return replace(record, groups=tuple(map(without_location, record.groups)))
    if isinstance(record, ClosedGroup):
        return replace(record, group=without_location(record.group))
    return record


def bytes_without_location(record: Any, data: bytes) -> bytes:
    """Return an encoded record with its locations cut out: cheaper than to encode it again without them."""
    if type(record) not in _LOCATED:
        return data
    pieces, at = [], 0
    for location in _locations(record):  # their order in the bytes
        encoded = encode_part(location)
        start = data.find(encoded, at)
        if start >= 0:
            pieces.append(data[at:start])
            at = start + len(encoded)
    pieces.append(data[at:])
    return b"".join(pieces)


def _locations(record: Any) -> Iterator[Location]:
    if isinstance(record, Score | GroupMember):
        yield record.location
        yield from (place for place in (record.revised_at, record.hints_at) if place is not None)
    elif isinstance(record, Group):
        for member in record.members:
            yield from _locations(member)
    elif isinstance(record, ClosedGroup):
        yield from _locations(record.group)
    elif isinstance(record, TrainingBatch):
        for group in record.groups:
            yield from _locations(group)


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


def combine_digests(digests: Iterable[Digest | bytes]) -> str:
    """Return one hash for a stage's input partitions: for a digest, or for the value that another process reported."""
    whole = hashlib.sha256()
    for digest in digests:
        whole.update(value_of(digest))
    return whole.hexdigest()[:32]


def value_of(digest: Digest | bytes) -> bytes:
    """Return the hash of everything that a digest has taken in."""
    return digest if isinstance(digest, bytes) else digest.value()
