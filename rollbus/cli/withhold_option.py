"""The `--withhold` option of the commands that record traffic."""

from collections.abc import Callable
from typing import Any

import click

FIELDS = ("messages", "tools", "tool_calls", "labels", "comments", "errors", "tokens")
"""The values of `rollbus.producers.turns.redaction.Field`, which would take a tenth of a second to import."""


def withhold_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option; its command gets a frozenset of fields."""
    return click.option(
        "--withhold",
        type=click.Choice(FIELDS),
        multiple=True,
        callback=lambda _context, _option, chosen: frozenset(chosen),
        help=text,
    )
