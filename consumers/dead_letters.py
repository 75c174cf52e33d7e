"""Dead letters → counts by kind, one letter in full, and the records to write again. Pure."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rollbus.schemas.codec import decode_if, record_name
from rollbus.schemas.records.control import OPERATOR, ConfigApplied, Tick, is_control
from rollbus.schemas.records.drops import ATTEMPT_HEADER, ORIGIN_HEADER, SET_ASIDE, DeadLetter, is_set_aside
from rollbus.schemas.records.events import Excluded

Headers = list[tuple[str, bytes]]
Original = tuple[bytes | None, bytes]
"""Key and value of a record that is still at its place."""


@dataclass(frozen=True, slots=True)
class Kind:
    """All dead letters of one topic, stage and class of error."""

    topic: str
    stage: str
    error_class: str
    count: int
    most_attempts: int
    newest: DeadLetter


@dataclass(frozen=True, slots=True)
class Copy:
    """A record to write to its origin again."""

    origin: str
    letter: DeadLetter
    attempt: int


def letter_origin(letter: DeadLetter) -> str:
    """Return the place of the record that could not be processed: topic:partition:offset."""
    return f"{letter.topic}:{letter.partition}:{letter.offset}"


def standing_letters(letters: Iterable[DeadLetter]) -> list[DeadLetter]:
    """Return the letters that an operator has not set aside; a letter that comes after that counts again."""
    standing: dict[str, list[DeadLetter]] = {}
    for letter in letters:
        if is_set_aside(letter):
            standing.pop(letter_origin(letter), None)
        else:
            standing.setdefault(letter_origin(letter), []).append(letter)
    return [letter for letters_of_origin in standing.values() for letter in letters_of_origin]


def set_aside(letters: Iterable[DeadLetter], reason: str, now_ms: int) -> list[DeadLetter]:
    """Return one record per origin by which its letters no longer count; the letters themselves stay in the log."""
    by_origin = {letter_origin(letter): letter for letter in letters}
    return [
        DeadLetter(
            topic=letter.topic,
            partition=letter.partition,
            offset=letter.offset,
            timestamp_ms=now_ms,
            stage=OPERATOR,
            error_class=SET_ASIDE,
            message=reason,
        )
        for letter in by_origin.values()
    ]


def count_kinds(letters: Iterable[DeadLetter]) -> list[Kind]:
    """Count letters by topic, stage and class, the most frequent first."""
    letters_by_kind = defaultdict[tuple[str, str, str], list[DeadLetter]](list)
    for letter in letters:
        letters_by_kind[letter.topic, letter.stage, letter.error_class].append(letter)
    rows = [
        Kind(
            *key,
            len(group),
            max(member.attempt for member in group),
            max(group, key=lambda member: member.timestamp_ms),
        )
        for key, group in letters_by_kind.items()
    ]
    return sorted(rows, key=lambda row: (-row.count, row.topic, row.stage, row.error_class))


def select_letters(
    letters: Iterable[DeadLetter], *, origins: Sequence[str] = (), error_class: str | None = None, namespace: str = ""
) -> list[DeadLetter]:
    """Return the letters of these origins, with or without the namespace, and this class; all by default."""
    origin_names = {*origins, *(namespace + name for name in origins)}
    return [
        letter
        for letter in letters
        if (not origins or letter_origin(letter) in origin_names) and error_class in (None, letter.error_class)
    ]


def origins_without_letter(letters: Iterable[DeadLetter], origins: Iterable[str], *, namespace: str = "") -> list[str]:
    """Return the origins, with or without the namespace, that have no letter."""
    present_origins = {letter_origin(letter) for letter in letters}
    return [name for name in origins if name not in present_origins and namespace + name not in present_origins]


def make_copies(letters: Iterable[DeadLetter], written: Iterable[str], originals: Mapping[str, Original]) -> list[Copy]:
    """Return one copy per origin; none where one was `written` before, for control, and for a record without a value.

    A letter with only the ends of a value is completed from its original; without the original it has no copy.
    """
    copied_names, copies = set(written), dict[str, Copy]()
    for letter in letters:
        name = letter_origin(letter)
        if name in copied_names or letter.value is None:
            continue
        if not letter.is_whole:
            key, value = originals.get(name, (None, b""))
            if hashlib.sha256(value).hexdigest() != letter.value_sha256:
                continue
            letter = replace(letter, key=key, value=value)
        if control_name(letter):
            continue
        attempt = max(letter.attempt + 1, copies[name].attempt if name in copies else 0)
        copies[name] = Copy(name, letter, attempt)
    return list(copies.values())


def control_name(letter: DeadLetter) -> str | None:
    """Return the name of the record if it is control, else None; a copy of control would lack its signature."""
    value = letter.value or b""
    name = record_name(value)
    excluded = decode_if(value, Excluded) if name == Excluded.__name__ else None
    is_owners = name in (Tick.__name__, ConfigApplied.__name__) or (excluded is not None and is_control(excluded))
    return name if is_owners else None


def copy_headers(copy: Copy) -> Headers:
    """Return the headers that a copy is written with."""
    return [(ATTEMPT_HEADER, str(copy.attempt).encode()), (ORIGIN_HEADER, copy.origin.encode())]


def describe_letter(letter: DeadLetter) -> list[tuple[str, str]]:
    """Return everything about a letter, name by name; bytes as hexadecimal digits."""
    value, cut_note = letter.value, "" if letter.is_whole else ", of which the two ends"
    return [
        ("origin", letter_origin(letter)),
        ("stage", letter.stage),
        ("error", f"{letter.error_class}: {letter.message}"),
        ("attempt", str(letter.attempt)),
        ("version", letter.app_version or "–"),
        ("claims to be", (record_name(value) if value else None) or "nothing known"),
        ("key", "–" if letter.key is None else f"{letter.key!r}"),
        ("sha256", letter.value_sha256 or "–"),
        ("value", "–" if value is None else f"{letter.value_bytes} bytes{cut_note}: {value.hex()}"),
    ]
