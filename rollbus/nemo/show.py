"""What a person sees of a run: log lines."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from rollbus.nemo import troubles

FORMAT = "%(levelname)s - %(message)s"


class _ConsoleHandler(logging.Handler):
    """Prints the harness' lines, those of the user's own files, and warnings of others."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self._console = console
        self.setFormatter(logging.Formatter(FORMAT))
        self.addFilter(_is_shown)

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(self.format(record), markup=False, highlight=False, soft_wrap=True)


def _is_shown(record: logging.LogRecord) -> bool:
    if record.name.startswith("rollbus.nemo") or not record.pathname.startswith(troubles.LIBRARY_FOLDERS):
        return True
    return record.levelno >= logging.WARNING and not record.name.startswith("nat.")  # it repeats each crash at length


@contextmanager
def show_log_lines(console: Console) -> Iterator[None]:
    """Show log lines while the block lasts."""
    handler, root = _ConsoleHandler(console), logging.getLogger()
    level_before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level_before)
