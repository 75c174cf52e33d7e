"""How commands print tables: compact, and wide enough if the output is a file or a pipe."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click
import rich.console
import rich.progress
import rich.table
from rich import box
from rich.pretty import Pretty

PLAIN_WIDTH = 160
"""Columns of an output without a terminal; nothing is cut for the reader of a file."""


class Console(rich.console.Console):
    """Rich's console, at its own width on a terminal; it prints brackets and colons as they are."""

    def __init__(self, **options: Any) -> None:
        """Take what rich's console takes."""
        stream = sys.stderr if options.get("stderr") else sys.stdout
        own = {"width": None if stream.isatty() else PLAIN_WIDTH, "markup": False, "emoji": False}
        super().__init__(**{**own, **options})


class Table(rich.table.Table):
    """Rich's table, with a line under the head and nothing else."""

    def __init__(self, *columns: str, **options: Any) -> None:
        """Take what rich's table takes."""
        super().__init__(*columns, **{"box": box.SIMPLE_HEAD, "pad_edge": False, **options})


def format_time(ms: int) -> str:
    """Return a time in UTC, to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def show_rows(table: Table, nothing: str) -> None:
    """Print a table, or, if it has no rows, what is missing and which command makes it."""
    if table.row_count:
        Console().print(table)
    else:
        click.echo(nothing)


def show_record(record: Any) -> None:
    """Print a record field by field: every metric, and the beginning of long lists."""
    Console().print(Pretty(record, max_length=max(12, len(getattr(record, "metrics", ())))))


@contextmanager
def show_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr; yields the function that moves it, given how much is done and of how much."""
    with rich.progress.Progress(
        *rich.progress.Progress.get_default_columns(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
