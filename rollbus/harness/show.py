"""What a person sees of a run: log lines, and progress bars for the epochs and the attempts of one."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rollbus.harness import troubles

if TYPE_CHECKING:
    from rollbus.harness.finetune import Components

FORMAT = "%(levelname)s - %(message)s"


class _ConsoleHandler(logging.Handler):
    """Prints above the bars: the harness' lines, those of the user's own files, and warnings of others."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self._console = console
        self.setFormatter(logging.Formatter(FORMAT))
        self.addFilter(_is_shown)

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(self.format(record), markup=False, highlight=False, soft_wrap=True)


def _is_shown(record: logging.LogRecord) -> bool:
    if record.name.startswith("rollbus.harness") or not record.pathname.startswith(troubles.NOT_THEIRS):
        return True
    return record.levelno >= logging.WARNING and not record.name.startswith("nat.")  # it repeats each crash at length


@contextmanager
def logged(console: Console) -> Iterator[None]:
    """Show log lines while the block lasts."""
    handler, root = _ConsoleHandler(console), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


@contextmanager
def show_epochs(console: Console, made: "Components") -> Iterator[None]:
    """Show how far epochs and attempts are."""
    from rollbus.harness.trainer import BusTrainer
    from rollbus.harness.trajectory_builder import BusTrajectoryBuilder

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        if isinstance(made.trainer, BusTrainer):
            epochs = progress.add_task("epochs", total=None)
            made.trainer.on_epoch = lambda done, total: progress.update(epochs, completed=done, total=total)
        if isinstance(made.builder, BusTrajectoryBuilder):
            attempts = progress.add_task("attempts", total=None)
            made.builder.progress = lambda done: progress.update(attempts, completed=done)
        yield
