"""What lies between a foreign document and our events: a trace with its calls of models and tools, and its scores.

Times are nanoseconds since 1970, as OpenTelemetry has them. Fields that no mapping reads are counted by name, so that a
user sees what was left out.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from rollbus.producers.turns.answer import ServerAnswer, number_of, text_of
from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.ids import hash_bytes

MS = 1_000_000
"""Nanoseconds in a millisecond."""
LATEST_NS = 253_402_300_800 * 10**9
"""The year 10000: a time beyond it, or before 1970, is a mistake."""
NO_CONTENT = "no_content"
"""The reason of a turn whose trace holds no texts, as most tools are set up at first, or no answer, and no error."""
_NUMBER = re.compile(r"\.\d+(?=\.|$)")


class ForeignDocumentError(InvalidRecordError):
    """A document is not of the format that it is read as; the message says what is wrong with it."""


class TracePart(NamedTuple):
    """A document, or a piece of one, and where it belongs."""

    trace_id: str
    kind: str
    id: str
    """Unique within trace and kind: the same part twice is one."""
    document: Mapping[str, Any]
    is_last: bool = False
    """Whether it ends its trace, as a root span does."""
    is_score: bool = False
    """Whether it counts without the rest of its trace, and any time later."""
    principal: str = ""
    """Head of the token that brought it, as the door knew it; empty for the owner's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedCall:
    """One generation of a model."""

    request: Mapping[str, Any]
    """With `messages` in the OpenAI form, and what else was asked."""
    answer: ServerAnswer
    streamed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTool:
    """One use of a tool."""

    name: str
    arguments: Any = ""
    result: Any = None
    call_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedSpan:
    """A stretch of work; only those with a call or a tool become events, the others give the tree."""

    id: str
    parent_id: str | None
    name: str
    start_ns: int
    end_ns: int
    content: ImportedCall | ImportedTool | None = None
    agent: str | None = None
    """Set where the span is an agent, to its name: the function that the calls below it belong to."""
    error: str | None = None
    principal: str = ""
    """Of its part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedScore:
    """What somebody, or something, said of a trace or of one of its spans."""

    id: str
    name: str
    value: float
    source: str
    span_id: str | None = None
    comment: str | None = None
    at_ns: int = 0
    principal: str = ""
    """Of its part."""


def score_number(value: Any) -> float | None:
    """Return a score as a reward takes it, true and false as 1 and 0; None where it is not a finite number."""
    number = float(value) if isinstance(value, bool) else number_of(value)
    return number if number is not None and math.isfinite(number) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One run of an agent."""

    id: str
    name: str
    spans: Sequence[ImportedSpan] = ()
    scores: Sequence[ImportedScore] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    environment: str = ""
    agent: str = ""
    example_id: str | None = None
    error: str | None = None
    principal: str = ""
    """Of its root span."""


class Fields:
    """A document that remembers which of its fields were read; the others are counted by `count_unread`."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document, self._read = document, set[str]()

    def take(self, *names: str) -> Any:
        """Return the first of these fields that is set, None for none; all of them count as read."""
        self._read.update(names)
        return next((value for name in names if (value := self._document.get(name)) is not None), None)

    def text(self, *names: str) -> str | None:
        """Return the first of these fields that is set, if it is a text or a number."""
        value = self.take(*names)
        return str(value) if isinstance(value, str | int | float) and value != "" else None

    def below(self, prefix: str) -> dict[str, Any]:
        """Return the fields with this prefix, by the rest of their names; they count as read."""
        names = [name for name in self._document if name.startswith(prefix)]
        self._read.update(names)
        return {name[len(prefix) :]: self._document[name] for name in names}

    def ignore(self, pattern: re.Pattern[str]) -> None:
        """Count the fields whose names have this form as read."""
        self._read.update(name for name in self._document if pattern.fullmatch(name))

    def count_unread(self, unmapped: Counter[str], kind: str) -> None:
        """Count the fields that nobody read and that hold something; positions in a list count as one field."""
        for name, value in self._document.items():
            if name not in self._read and value not in (None, "", [], {}):
                unmapped[f"{kind}.{_NUMBER.sub('.N', name)}"] += 1


def hash_document(document: Any) -> str:
    """Return a hash of a document of a stranger, which may hold half characters and numbers without end."""
    return hash_bytes(json.dumps(document, sort_keys=True).encode())


def text_field(document: Mapping[str, Any], *names: str) -> str:
    """Return the first of these fields, a text that is not empty; raises ForeignDocumentError."""
    for name in names:
        if isinstance(value := document.get(name), str) and value:
            return text_of(value) or ""
    raise ForeignDocumentError(f"it has no {' or '.join(names)}")


def ns_of(value: Any, what: str = "time") -> int:
    """Return a time: seconds, milliseconds … by their size, or ISO 8601 text, in UTC where it names no zone.

    Raises ForeignDocumentError for anything else.
    """
    try:
        if isinstance(value, str) and not value.isdecimal():
            moment = datetime.fromisoformat(value.strip())
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            seconds = int(moment.replace(microsecond=0).timestamp())
            ns = seconds * 10**9 + moment.microsecond * 1000
        else:
            number = int(value) if isinstance(value, str) else value
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise TypeError
            scale = next((factor for factor in (10**9, 10**6, 10**3) if number * factor < LATEST_NS), 1)
            ns = int(number * scale)
    except (ValueError, TypeError, OverflowError):
        raise ForeignDocumentError(f"its {what} is {str(value)[:40]!r}, which is not a time") from None
    if not 0 <= ns < LATEST_NS:
        raise ForeignDocumentError(f"its {what} is {str(value)[:40]!r}, which is before 1970 or after 9999")
    return ns


def labels_of(metadata: Any, unmapped: Counter[str], kind: str) -> dict[str, str]:
    """Return the texts, numbers and booleans of a mapping as labels; what is nested is counted."""
    labels = {}
    for name, value in metadata.items() if isinstance(metadata, Mapping) else ():
        if isinstance(value, bool):
            labels[str(name)] = str(value).lower()
        elif isinstance(value, str | int | float):
            labels[str(name)] = str(value)
        elif value is not None:
            unmapped[f"{kind}.{name}"] += 1
    return labels
