"""What a reader of the log has lost, shown to the operator who accepts it."""

from collections.abc import Mapping

import click

from rollbus.runtime.log_mark import AcceptedLoss
from rollbus.terminal.output import echo

yes_option = click.option("--yes", is_flag=True, help="Do it; without this, only show what would be lost.")


def show_losses(reader: str, losses: Mapping[tuple[str, int], AcceptedLoss], *, accepted: bool, meaning: str) -> None:
    """Print a line for each partition, and, where nothing was accepted yet, what the loss means."""
    verb = "continues" if accepted else "would continue"
    for (topic, partition), loss in losses.items():
        count = loss.last - loss.first + 1
        without = f" without records {loss.first} … {loss.last} ({count} at most)" if count > 0 else ""
        echo(f"{reader}: {topic}[{partition}] {verb}{without} at {loss.resumes_at}: {loss.why}")
    if not losses:
        echo(f"{reader}: nothing is lost, and nothing was changed")
    elif not accepted:
        echo(f"Nothing was changed. {meaning}")
