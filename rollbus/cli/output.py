"""How commands print tables: compact, and wide enough where the output is a file or a pipe."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import rich.console
import rich.progress
import rich.table
from rich import box
from rich.pretty import Pretty

PLAIN_WIDTH = 160
"""Columns where nobody's terminal sets them: nothing is cut for whoever reads the file."""


class Console(rich.console.Console):
    """Rich's console, at its own width on a terminal; what it is given is text, be there brackets or colons in it."""

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


def show_rows(table: Table, nothing: str) -> None:
    """Print a table, or, where it has no rows, what is not there yet and what makes it."""
    if table.row_count:
        Console().print(table)
    else:
        click.echo(nothing)


def show_record(record: Any) -> None:
    """Print a record field by field: every metric, and of long lists their beginning."""
    Console().print(Pretty(record, max_length=max(12, len(getattr(record, "metrics", ())))))


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr, and hand out what moves it: how much is done, and of how much."""
    with rich.progress.Progress(
        *rich.progress.Progress.get_default_columns(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
