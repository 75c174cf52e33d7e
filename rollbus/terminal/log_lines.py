"""Log records → the lines that are written: which of them, and in which form.

`RepeatFilter` passes a line that a library repeats once per period, with the number of lines that were left out. While
a broker is away, each of its clients logs that several times a second, which would fill a disk. `LogFormatter` writes
a line for people, `JsonFormatter` a JSON object.
"""

import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from rollbus.schemas.unseen_characters import escape_lines
from rollbus.terminal.silence import SILENCE

LINE_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
"""What a log line for people shows, for `LogFormatter`."""
PERIOD_S = 30.0
"""Long enough to read the other lines, short enough to see that the problem is still there."""
MOST_KINDS = 500
"""Kinds of lines that are remembered; some libraries put variable parts into the text itself."""


def log_to_stderr() -> None:
    """Log for people, from INFO on; of the libraries only warnings and errors, and no line over and over."""
    SILENCE.command = ""
    formatter = JsonFormatter() if is_json_wanted() else LogFormatter(LINE_FORMAT)
    logging.basicConfig(level=logging.INFO)
    for name in ("httpx", "httpcore", "aiokafka"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(formatter)
        handler.addFilter(RepeatFilter())


def is_json_wanted() -> bool:
    """Say whether the command that runs was asked for log lines in JSON."""
    context = click.get_current_context(silent=True)
    return context is not None and context.find_root().params.get("log_format") == "json"


@dataclass(slots=True)
class _PassedLine:
    """The last line of its kind that was passed."""

    at_s: float
    """Unix time."""
    left_out: int = 0
    """Lines like it since."""


class RepeatFilter(logging.Filter):
    """Passes each kind of line of a library once per period. Lines of rollbus always pass: they name their object."""

    def __init__(self, period_s: float = PERIOD_S) -> None:
        super().__init__()
        self._period_s = period_s
        self._last_by_kind: dict[tuple[str, str], _PassedLine] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide on one line by its own time; the first after a pause says how many were left out."""
        if record.name.partition(".")[0] == "rollbus":
            return True
        kind = (record.name, str(record.msg))
        last = self._last_by_kind.get(kind)
        if last is not None and record.created - last.at_s < self._period_s:
            last.left_out += 1
            return False
        self._last_by_kind.pop(kind, None)
        self._last_by_kind[kind] = _PassedLine(record.created)
        if len(self._last_by_kind) > MOST_KINDS:
            del self._last_by_kind[next(iter(self._last_by_kind))]  # the oldest
        if last is not None and last.left_out:
            record.msg = f"{record.msg} ({last.left_out} more like it)"
        return True


class LogFormatter(logging.Formatter):
    """A line per record, with what a terminal would obey or what would pass for another line escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback that another handler has written into the record is written again."""
        if record.exc_info:
            record.exc_text = None
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return the line without the traceback."""
        return escape_lines(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """Return the traceback, whose errors may quote anything."""
        return escape_lines(super().formatException(ei))


class JsonFormatter(logging.Formatter):
    """One JSON object per record, for programs that collect logs; JSON itself escapes what a terminal would obey."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object as one line of ASCII."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
