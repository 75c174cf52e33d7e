"""What a person sees of a run: the toolkit's log lines, and progress bars for the epochs and the attempts of one."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from rollbus.harness.finetune import Components

FORMAT = "%(levelname)s - %(message)s"


class _ConsoleHandler(logging.Handler):
    """Prints above the bars."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self._console = console
        self.setFormatter(logging.Formatter(FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(self.format(record), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def logged(console: Console) -> Iterator[None]:
    """Show the harness' log lines while the block lasts."""
    handler, found = _ConsoleHandler(console), logging.getLogger("rollbus.harness")
    before = found.level
    found.addHandler(handler)
    found.setLevel(logging.INFO)
    found.propagate = False
    try:
        yield
    finally:
        found.removeHandler(handler)
        found.setLevel(before)
        found.propagate = True


@contextmanager
def show_epochs(console: Console, made: "Components") -> Iterator[None]:
    """Show how far epochs and attempts are."""
    from rollbus.harness.art_trainer import ARTTrainer
    from rollbus.harness.art_trajectory_builder import ARTTrajectoryBuilder

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        if isinstance(made.trainer, ARTTrainer):
            epochs = progress.add_task("epochs", total=None)
            made.trainer.on_epoch = lambda done, total: progress.update(epochs, completed=done, total=total)
        if isinstance(made.builder, ARTTrajectoryBuilder):
            attempts = progress.add_task("attempts", total=None)
            made.builder.progress = lambda done, total: progress.update(attempts, completed=done, total=total)
        yield
