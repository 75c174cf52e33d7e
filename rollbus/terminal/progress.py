"""Show what is being done, and how much of it: a line that moves on a terminal, else a plain line now and then.

Whatever may take longer than five seconds runs inside `show_progress`. All of it goes to stderr, so that results can
be piped. A thread writes the plain lines, so they come also while the work waits or computes.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import rich.console
import rich.progress
from rich.text import Text

from rollbus.runtime.tasks import start_thread
from rollbus.terminal.output import Console, echo
from rollbus.terminal.silence import SILENCE

LEAST_SHARE = 0.05
"""Of the whole, before the time that is left is estimated: the first of many that run at once are not a pace."""
MINUTE_S, HOUR_S = 60, 3600


@dataclass(slots=True)
class Progress:
    """What is being done, how much of it is done and of how much; call it with both numbers."""

    what: str
    unit: str = ""
    """Plural of what is counted; empty for a bare number."""
    done: int = 0
    total: int = 0
    """0 while it is not known."""
    began_s: float = field(default_factory=time.monotonic)
    is_plain: bool = False
    """Without a terminal: each step that begins is a line at once."""

    def __call__(self, done: int, total: int) -> None:
        """Say how much is done."""
        self.done, self.total = done, total

    def begin(self, what: str) -> None:
        """Go on to the next thing: the count and the clock begin again."""
        self.what, self.done, self.total, self.began_s = what, 0, 0, time.monotonic()
        if self.is_plain:
            echo(what, err=True)
            SILENCE.since_s = self.began_s

    def line(self, now_s: float) -> str:
        """Return the plain line."""
        return f"{self.what}: {describe_progress(self.done, self.total, self.unit, now_s - self.began_s)}"


def describe_progress(done: int, total: int, unit: str, elapsed_s: float) -> str:
    """Return how far something is: `412 of 1,000 tickets, about 9 minutes left`, or the time that it took so far."""
    if not total:
        return f"{_format_elapsed(elapsed_s)} so far"
    count_text = f"{done:,} of {total:,}" + (f" {unit}" if unit else "")
    if not LEAST_SHARE <= done / total < 1:
        return count_text
    return f"{count_text}, about {format_duration(elapsed_s * (total - done) / done)} left"


def _format_elapsed(seconds: float) -> str:
    """Return a time that passed, to the second: of two lines about one wait the later one shows more."""
    whole_seconds = max(1, round(seconds))
    if whole_seconds < 1.5 * MINUTE_S:
        return f"{whole_seconds} s"
    minutes, left_s = divmod(whole_seconds, MINUTE_S)
    return f"{minutes} min {left_s} s" if whole_seconds < HOUR_S else f"{minutes // 60} h {minutes % 60} min {left_s} s"


def format_duration(seconds: float) -> str:
    """Return a time that is only estimated, in its largest fitting unit."""
    if seconds < 1.5 * MINUTE_S:
        return f"{max(1, round(seconds))} s"
    if seconds < 1.5 * HOUR_S:
        return f"{round(seconds / MINUTE_S)} minutes"
    return f"{seconds / HOUR_S:.1f} hours"


@contextmanager
def show_progress(what: str, unit: str = "", *, console: rich.console.Console | None = None) -> Iterator[Progress]:
    """Show what is being done until the block ends; yields what moves it, given how much is done and of how much.

    Name the `console` that prints other lines meanwhile, so that the moving line makes room for them.
    """
    shown_on = console or Console(stderr=True)
    progress = Progress(what, unit, is_plain=not shown_on.is_terminal)
    SILENCE.open_displays += 1
    try:
        with _write_lines(progress) if progress.is_plain else _show_bar(progress, shown_on):
            yield progress
    finally:
        SILENCE.open_displays -= 1


@contextmanager
def _write_lines(progress: Progress) -> Iterator[None]:
    end_event = threading.Event()
    SILENCE.begin(time.monotonic())

    def write() -> None:
        while not end_event.wait(SILENCE.wait_s(time.monotonic())):
            echo(progress.line(time.monotonic()), err=True)
            SILENCE.since_s = time.monotonic()

    thread = start_thread(write, "progress", is_over=end_event.is_set)
    try:
        yield
    finally:
        end_event.set()
        thread.join()
        SILENCE.ended_s = time.monotonic()


@contextmanager
def _show_bar(progress: Progress, console: rich.console.Console) -> Iterator[None]:
    columns = (rich.progress.SpinnerColumn(), _Line(progress))
    with rich.progress.Progress(*columns, console=console, transient=True) as bar:
        bar.add_task("", total=None)
        yield


class _Line(rich.progress.ProgressColumn):
    """The plain line, cut to the terminal's width: rich asks for it ten times a second."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def render(self, task: rich.progress.Task) -> Text:
        return Text(self._progress.line(time.monotonic()), no_wrap=True, overflow="ellipsis")
