"""A log line that a library repeats → the line once in a while, with how many like it were left out.

While a broker is away its clients say so, each of them several times a second: that would fill a disk.
"""

import logging
from dataclasses import dataclass

PERIOD_S = 30.0
"""Long enough to read what else is logged, short enough to see that the trouble stays."""

MOST_KINDS = 500
"""Kinds of lines that are remembered; some libraries put what is new into the text itself."""


@dataclass(slots=True)
class _Said:
    at_s: float
    left_out: int = 0


class RepeatFilter(logging.Filter):
    """Lets through each kind of line once per period: of libraries only, ours name what they are about."""

    def __init__(self, period_s: float = PERIOD_S) -> None:
        super().__init__()
        self._period_s = period_s
        self._said: dict[tuple[str, str], _Said] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide on one line by its own time; the first after a pause says what was left out."""
        if record.name.partition(".")[0] == "rollbus":
            return True
        kind = (record.name, str(record.msg))
        said = self._said.get(kind)
        if said is not None and record.created - said.at_s < self._period_s:
            said.left_out += 1
            return False
        self._said.pop(kind, None)
        self._said[kind] = _Said(record.created)
        if len(self._said) > MOST_KINDS:
            del self._said[next(iter(self._said))]  # the one that was said longest ago
        if said is not None and said.left_out:
            record.msg = f"{record.msg} ({said.left_out} more like it)"
        return True
