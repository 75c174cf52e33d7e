"""Who may have a transaction open on an input partition: it stands beside the group's committed offset.

The partitions of a stage that one process owns share a transactional id, made anew with each assignment. So nobody can
be fenced by the partition's own id: a new owner reads here whose id that is, fences it, and only then claims the
partition, in the generation of the group in which it was given it. From this follows what makes a claim safe:
  a claim counts only in the group's present generation, so nobody claims what another owns by now;
  nobody commits a transaction on a partition with a producer that had not started when he claimed it;
  so whoever reads the last claim after he was given the partition, and fences its id, has fenced all before him.
"""

from dataclasses import dataclass
from typing import Literal

_CLAIM, _FIRST = "claimed by ", "first claimed by "


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's committed offset of a partition, and what is noted beside it."""

    offset: int
    owner: str
    """The transactional id; empty where somebody else committed, by a tool."""
    by: Literal["transaction", "claim", "first claim"] = "transaction"
    """A claim repeats the offset that it finds; the first one finds none, and names where reading begins."""

    @property
    def note(self) -> str:
        """What is committed beside the offset."""
        return {"transaction": "", "claim": _CLAIM, "first claim": _FIRST}[self.by] + self.owner


def parse(offset: int, note: str) -> Committed:
    """Return what an offset and the note beside it say."""
    if note.startswith(_FIRST):
        return Committed(offset, note.removeprefix(_FIRST), "first claim")
    if note.startswith(_CLAIM):
        return Committed(offset, note.removeprefix(_CLAIM), "claim")
    return Committed(offset, note)


def claim(found: Committed | None, owner: str, *, first: int) -> Committed:
    """Return the claim of a new owner: the offset stays; where there is none yet it is the partition's first."""
    if found is None:
        return Committed(first, owner, "first claim")
    return Committed(found.offset, owner, "first claim" if found.by == "first claim" else "claim")


def start_of(described: int | None, found: Committed | None) -> int | None:
    """Return where to go on, None for the beginning; raises ValueError where changelog and offset do not fit.

    `described` is the position that the changelog's last transaction names. That transaction committed the same offset.
    Only a claim's may lag behind, if it was on its way for so long that a transaction has overtaken it; and where the
    broker has forgotten the offsets, as it does a week after a group's last member, the changelog knows. A first claim
    names what retention has left by then, which may be less than what is still to be read; where no transaction has
    followed, all from there on is: what retention takes meanwhile is lost, and not older than the group.
    """
    if found is None:
        return described
    if found.by == "first claim":
        return found.offset if described is None else described
    if found.by == "transaction":
        fits = described == found.offset
    else:
        fits = described is not None and described >= found.offset
    if not fits:
        raise ValueError(f"{described} is not {found.offset}")
    return described
