"""`--from` and `--to` as a user writes them: offsets, a stream time or a tick."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from rollbus.schemas.errors import ConfigurationError

_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd]) ago")
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
    """What a log ends with now; as the end of a range, nothing else is meant by no bound at all."""

    @property
    def by_tick(self) -> bool:
        """Whether ticks have to be looked for."""
        return self.tick is not None or self.time_ms is not None


def parse_bound(text: str, *, now_ms: int) -> Bound:
    """Return the bound that a text names; raises ConfigurationError."""
    text = text.strip()
    if text in ("earliest", "latest"):
        return Bound(at_end=text == "latest")
    if text.startswith("tick:") and text[5:].isdigit():
        return Bound(tick=int(text[5:]))
    if text.isdigit():
        return Bound(offset=int(text))
    if match := _AGO.fullmatch(text):
        back = timedelta(**{_UNITS[match[2]]: float(match[1])})
        return Bound(time_ms=now_ms - int(back.total_seconds() * 1000))
    if re.fullmatch(r"\d+:\d+(,\d+:\d+)*", text):
        pairs = dict(pair.split(":") for pair in text.split(","))
        return Bound(offsets=tuple((int(partition), int(offset)) for partition, offset in pairs.items()))
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"{text!r} is no end of a range; write {FORMS}") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return Bound(time_ms=int(found.timestamp() * 1000))
