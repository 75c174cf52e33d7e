"""`rollbus dead-letters`: what could not be processed, and once more from the start."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.needs import needs_topic
from rollbus.cli.output import Table, show_rows
from rollbus.cli.root import with_settings
from rollbus.schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbus.settings import Settings

class_option = click.option("--class", "error_class", help="Only letters of this class of error.")


@click.group(cls=Verbs)
def dead_letters() -> None:
    """What could not be processed, and how to try it again."""


@dead_letters.command("list")
@class_option
@with_settings
def list_(settings: "Settings", error_class: str | None) -> None:
    """Count dead letters by topic, stage and class of error; ORIGIN of the newest is what `show` takes."""
    from rollbus.consumers.dead_letters import chosen, kinds, origin
    from rollbus.consumers.dead_letters_kafka import read_dead_letters

    needs_topic(settings, "dead-letters")
    letters = chosen(read_dead_letters(settings.kafka, settings.namespace), error_class=error_class)
    table = Table("topic", "stage", "class", "count", "most attempts", "newest (UTC)", "its origin")
    for kind in kinds(letters):
        newest = datetime.fromtimestamp(kind.newest.timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        counts = [str(kind.count), str(kind.most_attempts)]
        table.add_row(kind.topic, kind.stage, kind.error_class, *counts, newest, origin(kind.newest))
    of_class = f" of class {error_class!r}" if error_class else ""
    show_rows(
        table,
        f"no dead letter{of_class} in {settings.namespace!r}; what the sink could not read is apart: "
        "`rollbus sql run dead-letters-by-class`",
    )


@dead_letters.command()
@click.argument("origin")
@with_settings
def show(settings: "Settings", origin: str) -> None:
    """Show every dead letter of ORIGIN (topic:partition:offset): error, attempt and bytes."""
    from rollbus.consumers.dead_letters import chosen, described
    from rollbus.consumers.dead_letters_kafka import read_dead_letters

    needs_topic(settings, "dead-letters")
    letters = read_dead_letters(settings.kafka, settings.namespace)
    found = chosen(letters, origins=[origin], namespace=settings.namespace)
    if not found:
        raise ConfigurationError(f"no dead letter of {origin}; see `rollbus dead-letters list`")
    for letter in found:
        for name, value in described(letter):
            click.echo(f"{name:14}{value}")


@dead_letters.command()
@click.argument("origins", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every dead letter, or every one of --class.")
@class_option
@click.option("--dry-run", is_flag=True, help="Only say what would be written.")
@with_settings
def reinject(
    settings: "Settings", origins: tuple[str, ...], every: bool, error_class: str | None, dry_run: bool
) -> None:
    """Write the original records of ORIGINS (topic:partition:offset) to their topics once more.

    What was written again before is left out, so the command can be repeated. A record that fails again becomes a dead
    letter with the next attempt. Its place in the order of its key is now the end of the log.
    """
    from rollbus.consumers.dead_letters import chosen, without_letter
    from rollbus.consumers.dead_letters_kafka import read_dead_letters
    from rollbus.consumers.dead_letters_kafka import reinject as write_again

    if not origins and not every:
        raise ConfigurationError("say which: origins as `rollbus dead-letters list` shows them, or --all")
    needs_topic(settings, "dead-letters")
    letters = read_dead_letters(settings.kafka, settings.namespace)
    picked = chosen(letters, origins=origins, error_class=error_class, namespace=settings.namespace)
    if unknown := without_letter(picked, origins, namespace=settings.namespace):
        raise ConfigurationError(f"no dead letter of {', '.join(unknown)}; see `rollbus dead-letters list`")
    written = write_again(settings.kafka, picked, dry_run=dry_run)
    for copy in written:
        click.echo(f"{'would reinject' if dry_run else 'reinjected'} {copy.origin} as attempt {copy.attempt}")
    left = len({(letter.topic, letter.partition, letter.offset) for letter in picked}) - len(written)
    if left or not picked:
        click.echo(f"{left} left out: written again before, or without a value" if left else "no such dead letter")
