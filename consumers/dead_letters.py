"""Dead letters to what an operator asks of them: how many of which kind, one in full, which to write again. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rollbus.schemas.attempts import ATTEMPT_HEADER, ORIGIN_HEADER
from rollbus.schemas.chunks import split
from rollbus.schemas.codec import record_name
from rollbus.schemas.drops import DeadLetter

Headers = list[tuple[str, bytes]]


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
    """A record to be written to its origin once more."""

    origin: str
    letter: DeadLetter
    attempt: int


def origin(letter: DeadLetter) -> str:
    """Return where the record stands that could not be processed, or its first chunk: topic:partition:offset."""
    return f"{letter.topic}:{letter.partition}:{letter.offset}"


def kinds(letters: Iterable[DeadLetter]) -> list[Kind]:
    """Count letters by topic, stage and class, the most frequent first."""
    found = defaultdict[tuple[str, str, str], list[DeadLetter]](list)
    for letter in letters:
        found[letter.topic, letter.stage, letter.error_class].append(letter)
    rows = [
        Kind(*key, len(each), max(one.attempt for one in each), max(each, key=lambda one: one.timestamp_ms))
        for key, each in found.items()
    ]
    return sorted(rows, key=lambda row: (-row.count, row.topic, row.stage, row.error_class))


def chosen(
    letters: Iterable[DeadLetter], *, origins: Sequence[str] = (), error_class: str | None = None, namespace: str = ""
) -> list[DeadLetter]:
    """Return the letters of these origins, with or without the namespace, and of this class; all without either."""
    wanted = {*origins, *(namespace + name for name in origins)}
    return [
        letter
        for letter in letters
        if (not origins or origin(letter) in wanted) and error_class in (None, letter.error_class)
    ]


def without_letter(letters: Iterable[DeadLetter], origins: Iterable[str], *, namespace: str = "") -> list[str]:
    """Return those of the origins, with or without the namespace, of which there is no letter."""
    known = {origin(letter) for letter in letters}
    return [name for name in origins if name not in known and namespace + name not in known]


def copies(letters: Iterable[DeadLetter], written: Iterable[str]) -> list[Copy]:
    """Return one copy per origin: not of what was written again before, nor of records that had no value."""
    done, found = set(written), dict[str, Copy]()
    for letter in letters:
        name = origin(letter)
        if name in done or letter.value is None:
            continue
        attempt = max(letter.attempt + 1, found[name].attempt if name in found else 0)
        found[name] = Copy(name, letter, attempt)
    return list(found.values())


def frames(copy: Copy) -> list[tuple[bytes, Headers]]:
    """Return what is written of a copy, each with its headers: one record, or its chunks, the origin in the last."""
    attempt: Headers = [(ATTEMPT_HEADER, str(copy.attempt).encode())]
    origin: Headers = [(ORIGIN_HEADER, copy.origin.encode())]
    *parts, last = split(copy.letter.value or b"")
    return [*((part, attempt) for part in parts), (last, attempt + origin)]


def described(letter: DeadLetter) -> list[tuple[str, str]]:
    """Return everything about a letter, name by name; bytes as hexadecimal digits."""
    value = letter.value
    return [
        ("origin", origin(letter)),
        ("stage", letter.stage),
        ("error", f"{letter.error_class}: {letter.message}"),
        ("attempt", str(letter.attempt)),
        ("version", letter.app_version or "–"),
        ("claims to be", (record_name(value) if value else None) or "nothing known"),
        ("key", "–" if letter.key is None else f"{letter.key!r}"),
        ("value", "–" if value is None else f"{len(value)} bytes: {value.hex()}"),
    ]
