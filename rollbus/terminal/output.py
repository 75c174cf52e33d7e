"""How commands print: tables that are compact, and wide enough if the output is a file or a pipe.

Everything goes through `Console` or `echo`, which escape what a terminal would obey: most texts are strangers'.
"""

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import IO, Any

import click
import rich.console
import rich.table
import rich.text
from rich import box
from rich.console import JustifyMethod
from rich.pretty import Pretty
from rich.segment import Segment

from rollbus.schemas.unseen_characters import escape_unseen
from rollbus.terminal.silence import SILENCE

PLAIN_WIDTH = 160
"""Columns of an output without a terminal; nothing is cut for the reader of a file."""


class Console(rich.console.Console):
    """Rich's console, at its own width on a terminal; it prints brackets and colons as they are."""

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None, width: int | None = None) -> None:
        """Print on stdout, on stderr or into a file; without a width, as wide as the terminal."""
        _end_silence(err=stderr)
        if width is None and not (sys.stderr if stderr else sys.stdout).isatty():
            width = PLAIN_WIDTH
        super().__init__(stderr=stderr, file=file, width=width, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> rich.text.Text:
        """Escape a text before it is laid out, so that columns are wide enough for it."""
        return super().render_str(escape_unseen(text), **options)

    def render(self, renderable: Any, options: rich.console.ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape every text that comes out, in whatever it came in; rich's own control segments pass."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else escape_unseen(text), style, control)


class OutputTable(rich.table.Table):
    """Rich's table, with a line under the head and nothing else."""

    def __init__(
        self,
        *columns: str,
        title: str | None = None,
        title_justify: JustifyMethod = "center",
        show_header: bool = True,
    ) -> None:
        """Begin with these columns."""
        super().__init__(
            *columns,
            title=title,
            title_justify=title_justify,
            show_header=show_header,
            box=box.SIMPLE_HEAD,
            pad_edge=False,
        )


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text on stdout or stderr."""
    _end_silence(err=err)
    click.echo(escape_unseen(text), err=err, nl=nl)


def _end_silence(*, err: bool) -> None:
    """Note that the command has begun to answer, unless the text is for stderr, where only remarks come."""
    if not err:
        SILENCE.command = ""


def format_count(number: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun in the right form; give `plural` unless it is `singular` and an s."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def format_time(ms: int) -> str:
    """Return a time in UTC, to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def show_rows(table: OutputTable, nothing: str) -> None:
    """Print a table, or, if it has no rows, what is missing and which command makes it."""
    if table.row_count:
        Console().print(table)
    else:
        echo(nothing)


def show_record(record: Any) -> None:
    """Print a record field by field: every metric, and the beginning of long lists."""
    Console().print(Pretty(record, max_length=max(12, len(getattr(record, "metrics", ())))))
