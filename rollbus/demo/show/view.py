"""A `DemoStatus` → the live terminal view, or a plain line at each look if stdout is not a terminal.

Looks are further apart than a reader waits, so the plain lines have short ones between them, on stderr.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from rollbus.demo.job import Amounts, Words
from rollbus.demo.show.status import DemoStatus
from rollbus.terminal.progress import Progress, format_duration, show_progress
from rollbus.terminal.silence import SILENCE

BARS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 48


class LiveView:
    """Shows the status as it changes; a context manager."""

    def __init__(self, console: Console, words: Words, amounts: Amounts) -> None:
        self._console, self._words, self._amounts = console, words, amounts
        self._began = time.monotonic()
        self._begins = f"waiting for the first {words.traffic_unit}"
        begins = Spinner("dots", self._begins)
        self._live = (
            Live(begins, console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        )
        self._progress: Progress | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Take over the terminal."""
        if self._live:
            self._stack.enter_context(self._live)
        else:
            self._progress = self._stack.enter_context(show_progress(self._begins, self._words.traffic_unit))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give it back."""
        self._stack.close()

    def show(self, status: DemoStatus, *, phase: str) -> None:
        """Draw the status."""
        elapsed = time.monotonic() - self._began
        amounts = self._amounts
        left_s = time_left_s(status.from_traffic, amounts.episodes, elapsed, amounts.time_limit_s)
        so_far = describe_traffic(status.from_traffic, amounts.episodes, self._words.traffic_unit, left_s)
        if self._live:
            bar = ProgressBar(total=amounts.episodes, completed=min(status.from_traffic, amounts.episodes))
            self._live.update(render(status, self._words, phase=phase, so_far=so_far, bar=bar, elapsed_s=elapsed))
        else:
            text = line(status, phase=phase, so_far=so_far, elapsed_s=elapsed)
            self._console.print(text, highlight=False, soft_wrap=True)
            if self._progress is not None:
                self._progress.what = phase
                self._progress(status.from_traffic, amounts.episodes)
                SILENCE.since_s = time.monotonic()


def time_left_s(done: int, total: int, elapsed_s: float, limit_s: float) -> float | None:
    """Return the time left at the mean rate so far, within the limit; None before there is a rate."""
    if not done:
        return None
    return max(0.0, min(elapsed_s * (total / done - 1), limit_s - elapsed_s))


def describe_traffic(done: int, total: int, unit: str, left_s: float | None) -> str:
    """Return how much of the traffic has come: `412 of 1,000 tickets, about 9 minutes left`."""
    left_text = f", about {format_duration(left_s)} left" if left_s else ""
    return f"{done:,} of {total:,} {unit}{left_text}"


def sparkline(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """Draw one bar per value, for the last `width` values."""
    newest = list(values)[-width:]
    if not newest:
        return ""
    low, span = min(newest), max(newest) - min(newest)
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1))] if span else BARS[0] for value in newest)


def line(status: DemoStatus, *, phase: str, so_far: str, elapsed_s: float) -> str:
    """Return the status in one line."""
    reward = f"{status.rewards[-1].reward:.2f}" if status.rewards else "–"
    return (
        f"{elapsed_s:4.0f} s  {phase}: {so_far}; attempts {status.episodes}, trajectories {status.trajectories}, "
        f"groups {status.groups} ({status.without_signal} without signal), batches {status.batches}, "
        f"steps {status.steps}, policy version {status.version}, reward {reward}, lag {sum(status.lag.values())}"
    )


def render(
    status: DemoStatus, words: Words, *, phase: str, so_far: str, bar: ProgressBar, elapsed_s: float
) -> RenderableType:
    """Return the whole view."""
    head = Table.grid(expand=True, padding=(0, 2))
    head.add_column(ratio=1)
    head.add_column(justify="right")
    head.add_row(Text(phase, style="bold"), Text(f"{so_far} · {elapsed_s / 60:.1f} min", style="dim"))
    return Panel(
        Group(head, bar, Text(), _stages(status, words), Text(), _learning(status, words)),
        title=f"[bold]rollbus[/bold] · {words.title}",
        border_style="cyan",
        padding=(1, 2),
    )


def _stages(status: DemoStatus, words: Words) -> Table:
    table = Table(box=None, expand=True, header_style="dim", pad_edge=False)
    table.add_column("stage")
    table.add_column("so far", justify="right")
    table.add_column("behind", justify="right")
    table.add_column("", ratio=1)
    attempts = f"{status.episodes:,} attempts at {status.from_traffic:,} {words.traffic_unit}"
    per_group = f"{status.without_signal} without signal" if status.groups else ""
    rows: tuple[tuple[str, int | None, str, str], ...] = (
        ("agents → episode-events", status.events, "", attempts),
        ("assembly → trajectories", status.trajectories, "assembly", ""),
        ("scoring → scores", sum(row.episodes for row in status.rewards), "scoring", ""),
        ("grouping → groups", status.groups, "grouping", per_group),
        ("curriculum → batches", status.batches, "curriculum", _drops(status)),
        ("trainer → steps", status.steps, "", f"{status.trained} trajectories trained"),
        ("sink → ClickHouse", None, "sink", f"{status.dead_letters} dead letters"),
    )
    for name, count, consumer, remark in rows:
        behind = str(status.lag[consumer]) if consumer in status.lag else ""
        table.add_row(name, "" if count is None else f"{count:,}", behind, Text("  " + remark, style="dim"))
    return table


def _learning(status: DemoStatus, words: Words) -> Text:
    text = Text()
    text.append(f"policy version {status.version}", style="bold green")
    if not status.rewards:
        return text.append("   no rewards yet", style="dim")
    first, last = status.rewards[0], status.rewards[-1]
    text.append(f"   reward {first.reward:.2f} → ")
    text.append(f"{last.reward:.2f}", style="bold")
    text.append(f"   {words.success} {100 * first.wins:.0f} % → {100 * last.wins:.0f} %   ")
    return text.append(sparkline([row.reward for row in status.rewards]), style="green")


def _drops(status: DemoStatus) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in status.drops.items())
