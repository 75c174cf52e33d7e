"""`rollbus token`: who may record and report, by a token each.

A token is derived from the stack's `principals_key`, so no door keeps a list of tokens.
"""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.number_option import Number
from rollbus.cli.root import Settings, with_settings
from rollbus.runtime import principals
from rollbus.runtime.credentials import secrets_folder
from rollbus.schemas.principals import GRANTS
from rollbus.terminal.output import OutputTable, echo, show_rows

OVERLAP_HOURS = 24.0
TIME = "%Y-%m-%d %H:%M:%S UTC"


@click.group(cls=Verbs)
def token() -> None:
    """Give tokens to producers and reporters, list them, and end them."""


@token.command()
@click.argument("name")
@click.option("--may", default="record", help=f"Allow these, separated by commas: {', '.join(GRANTS)}.")
@with_settings
def create(settings: Settings, name: str, may: str) -> None:
    """Print a token for a new name; the worker and the doors know it without being told.

    `record` opens the model's port, the proxy and the ingest endpoint, and signs episodes; `feedback` signs rewards.
    Training, promotion and control take the owner's token.
    """
    grants = [grant.strip() for grant in may.split(",") if grant.strip()]
    echo(principals.issue(_folder(settings), name, grants, datetime.now(UTC)))


@token.command("list")
@with_settings
def list_(settings: Settings) -> None:
    """List who has a token, what it may, and since when it has ended."""
    table = OutputTable("name", "may", "generation", "made", "ends")
    for name, issued in sorted(principals.read_tokens(_folder(settings)).items()):
        ends = issued.ends_at.strftime(TIME) if issued.ends_at else ""
        may = ", ".join(sorted(issued.principal.grants))
        table.add_row(name, may, str(issued.principal.generation), issued.made_at.strftime(TIME), ends)
    show_rows(table, "nobody has a token yet: `rollbus token create NAME --may record,feedback` prints one")


@token.command()
@click.argument("name")
@click.option(
    "--overlap", default=OVERLAP_HOURS, type=Number(min=0), help="Let the old token count so many hours more."
)
@with_settings
def rotate(settings: Settings, name: str, overlap: float) -> None:
    """Print a new token for a name; the one before ends after the overlap."""
    try:
        new_token = principals.rotate(_folder(settings), name, datetime.now(UTC), timedelta(hours=overlap))
    except (OverflowError, ValueError) as error:
        raise click.UsageError(
            f"--overlap {overlap:g} is not a number of hours that a calendar has; take less"
        ) from error
    echo(new_token)


@token.command()
@click.argument("name")
@with_settings
def end(settings: Settings, name: str) -> None:
    """End every token of a name now; restart the workers, which read the endings at their start."""
    principals.end(_folder(settings), name, datetime.now(UTC))
    echo(f"{name} has no token that counts; doors know it at once, workers after a restart")


def _folder(settings: Settings) -> Path:
    return secrets_folder(settings.stack.data_dir, os.environ)
