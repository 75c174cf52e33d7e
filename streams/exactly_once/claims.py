"""The owner that may have a transaction open on an input partition, noted next to the group's committed offset.

The partitions of a stage that one process owns share a transactional id, which is new with each assignment. So an owner
cannot be fenced by an id of the partition. A new owner reads the claim here, fences the id that it names, and only then
claims the partition, in the generation of the group in which the partition was assigned. This is safe:
  a claim counts only in the group's present generation, so no process claims what another owns by now;
  a process commits transactions on a partition only with a producer that had started when it claimed the partition;
  so an owner that reads the last claim after its assignment, and fences the id, has fenced every owner before it.
"""

from dataclasses import dataclass
from typing import Literal

_NOTES = {
    "transaction": "",
    "claim": "claimed by ",
    "first claim": "first claimed by ",
    "tool claim": "claimed after a tool by ",
}


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's committed offset of a partition, and the note next to it."""

    offset: int
    owner: str
    """The transactional id; empty if a tool committed the offset."""
    by: Literal["transaction", "claim", "first claim", "tool claim"] = "transaction"
    """A claim repeats the committed offset; the first claim finds none, and names where reading begins. A tool claim
    repeats what a tool has set: that must be what the changelog says."""

    @property
    def note(self) -> str:
        """The text that is committed with the offset."""
        return _NOTES[self.by] + self.owner


def parse(offset: int, note: str) -> Committed:
    """Return what an offset and its note mean."""
    for by in ("first claim", "tool claim", "claim"):
        if note.startswith(_NOTES[by]):
            return Committed(offset, note.removeprefix(_NOTES[by]), by)
    return Committed(offset, note)


def claim(committed: Committed | None, owner: str, *, first: int) -> Committed:
    """Return the claim of a new owner: it keeps the offset, or takes the partition's first if there is none."""
    if committed is None:
        return Committed(first, owner, "first claim")
    if committed.by in ("first claim", "tool claim"):
        return Committed(committed.offset, owner, committed.by)
    return Committed(committed.offset, owner, "claim" if committed.owner else "tool claim")


def start_of(described: int | None, committed: Committed | None) -> int | None:
    """Return the position to continue from, None for the beginning; raises ValueError if the two do not match.

    `described` is the position that the changelog's last transaction names. That transaction committed the same offset.
    A claim's offset may be older, if a transaction has overtaken the claim on its way. The broker forgets offsets a
    week after a group's last member left; then the changelog decides. A first claim names the first offset that
    retention had left; without a transaction after it, reading begins there.
    """
    if committed is None:
        return described
    if committed.by == "first claim":
        return committed.offset if described is None else described
    if committed.by in ("transaction", "tool claim"):
        fits = described == committed.offset
    else:
        fits = described is not None and described >= committed.offset
    if not fits:
        raise ValueError(f"{described} is not {committed.offset}")
    return described
