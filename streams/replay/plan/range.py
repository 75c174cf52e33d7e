"""`--from` and `--to` as a user writes them: offsets, a stream time or a tick."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from rollbus.schemas.errors import ConfigurationError

_AGO = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd]) ago")
_NUMBER = "[0-9]{1,18}"
"""All that fit into 64 bits, as offsets and ticks do; Python refuses to read a number of thousands of digits."""
_OFFSETS = re.compile(rf"{_NUMBER}:{_NUMBER}(,{_NUMBER}:{_NUMBER})*")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
FORMS = "earliest, latest, 2026-11-20T12:00, '2h ago', tick:4711, an offset 1200, or 0:1200,1:900 by partition"


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range: exactly one of these, or none for the earliest or latest."""

    tick: int | None = None
    time_ms: int | None = None
    """Stream time."""
    offset: int | None = None
    """In every partition."""
    offsets: tuple[tuple[int, int], ...] = ()
    """By partition; the others are read whole."""
    at_end: bool = False
    """What a log ends with now. At the end of a range, no bound means the same."""

    @property
    def by_tick(self) -> bool:
        """Whether ticks have to be looked for."""
        return self.tick is not None or self.time_ms is not None


def parse_end(text: str, *, now_ms: int) -> Bound:
    """Return the end of a range that a text names; raises ConfigurationError."""
    return Bound(offset=0) if text.strip() == "earliest" else parse_bound(text, now_ms=now_ms)


def parse_bound(text: str, *, now_ms: int) -> Bound:
    """Return the beginning of a range that a text names; raises ConfigurationError."""
    text = text.strip()
    if text in ("earliest", "latest"):
        return Bound(at_end=text == "latest")
    if match := re.fullmatch(rf"tick:({_NUMBER})", text):
        return Bound(tick=int(match[1]))
    if re.fullmatch(_NUMBER, text):
        return Bound(offset=int(text))
    if match := _AGO.fullmatch(text):
        return Bound(time_ms=now_ms - _ago_ms(float(match[1]), _UNITS[match[2]]))
    if _OFFSETS.fullmatch(text):
        return Bound(offsets=_offsets(text))
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"{text!r} is not an end of a range; write {FORMS}") from None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return Bound(time_ms=int(instant.timestamp() * 1000))


def _ago_ms(count: float, unit: str) -> int:
    try:
        return int(timedelta(**{unit: count}).total_seconds() * 1000)
    except OverflowError:
        raise ConfigurationError(
            f"{count:g} {unit} ago is not an end of a range; `earliest` is as far as it goes"
        ) from None


def _offsets(text: str) -> tuple[tuple[int, int], ...]:
    pairs = [(int(partition), int(offset)) for partition, offset in (pair.split(":") for pair in text.split(","))]
    if len(dict(pairs)) < len(pairs):
        raise ConfigurationError(f"{text!r} names a partition twice")
    return tuple(pairs)
