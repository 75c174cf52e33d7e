"""`rollbus dead-letters`: show records that could not be processed, and try them again."""

import asyncio

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.required_topics import require_topics
from rollbus.cli.root import Settings, with_settings
from rollbus.schemas.errors import ConfigurationError
from rollbus.terminal.output import OutputTable, echo, format_time, show_rows

SAYS_AGAIN = {
    "Tick": "a running worker writes the next one",
    "ConfigApplied": "a worker writes it when it starts",
    "Excluded": "`rollbus forget --episode` writes it",
}
"""Who says again what only the owner may say."""
class_option = click.option("--class", "error_class", help="Take only dead letters of this class of error.")


@click.group(cls=Verbs)
def dead_letters() -> None:
    """Show records that could not be processed, and try them again."""


@dead_letters.command("list")
@class_option
@with_settings
def list_(settings: Settings, error_class: str | None) -> None:
    """Count dead letters by topic, stage and class of error, with the ORIGIN of the newest for `show`."""
    from rollbus.consumers.dead_letters import count_kinds, letter_origin, select_letters
    from rollbus.consumers.dead_letters_kafka import read_dead_letters

    require_topics(settings, "dead-letters")
    letters = asyncio.run(read_dead_letters(settings.kafka, settings.namespace))
    letters = select_letters(letters, error_class=error_class)
    table = OutputTable("topic", "stage", "class", "count", "most attempts", "newest (UTC)", "its origin")
    for kind in count_kinds(letters):
        newest = format_time(kind.newest.timestamp_ms)
        counts = [str(kind.count), str(kind.most_attempts)]
        table.add_row(kind.topic, kind.stage, kind.error_class, *counts, newest, letter_origin(kind.newest))
    of_class = f" of class {error_class!r}" if error_class else ""
    show_rows(
        table,
        f"no dead letter{of_class} in {settings.namespace!r}; for records that the sink could not read: "
        "`rollbus sql run dead-letters-by-class`",
    )


@dead_letters.command()
@click.argument("origin")
@with_settings
def show(settings: Settings, origin: str) -> None:
    """Show every dead letter of ORIGIN (topic:partition:offset): error, attempt and bytes."""
    from rollbus.consumers.dead_letters import describe_letter, select_letters
    from rollbus.consumers.dead_letters_kafka import read_dead_letters

    require_topics(settings, "dead-letters")
    letters = asyncio.run(read_dead_letters(settings.kafka, settings.namespace))
    chosen_letters = select_letters(letters, origins=[origin], namespace=settings.namespace)
    if not chosen_letters:
        raise ConfigurationError(f"no dead letter of {origin}; see `rollbus dead-letters list`")
    for letter in chosen_letters:
        for name, value in describe_letter(letter):
            echo(f"{name:14}{value}")


@dead_letters.command()
@click.argument("origins", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Take every dead letter, or every one of --class.")
@class_option
@click.option("--dry-run", is_flag=True, help="Only show what would be written.")
@with_settings
def reinject(settings: Settings, origins: tuple[str, ...], every: bool, error_class: str | None, dry_run: bool) -> None:
    """Write the original records of ORIGINS (topic:partition:offset) to their topics again.

    The command can be repeated: a record that it has written before is left out. A record that fails again becomes a
    dead letter with the next attempt number. Its new place in the log is the end. Ticks, configurations and exclusions
    are never written: only their owner signs them.
    """
    from rollbus.consumers.dead_letters import control_name, letter_origin, origins_without_letter, select_letters
    from rollbus.consumers.dead_letters_kafka import read_dead_letters
    from rollbus.consumers.dead_letters_kafka import reinject as write_again

    if not origins and not every:
        raise ConfigurationError("give origins as `rollbus dead-letters list` shows them, or --all")
    require_topics(settings, "dead-letters")
    letters = asyncio.run(read_dead_letters(settings.kafka, settings.namespace))
    picked = select_letters(letters, origins=origins, error_class=error_class, namespace=settings.namespace)
    if unknown := origins_without_letter(picked, origins, namespace=settings.namespace):
        raise ConfigurationError(f"no dead letter of {', '.join(unknown)}; see `rollbus dead-letters list`")
    copies = asyncio.run(write_again(settings.kafka, picked, dry_run=dry_run))
    for copy in copies:
        echo(f"{'would reinject' if dry_run else 'reinjected'} {copy.origin} as attempt {copy.attempt}")
    control = {letter_origin(letter): name for letter in picked if (name := control_name(letter))}
    for origin, name in control.items():
        echo(f"refused {origin}: it is {name}, which only the owner signs; {SAYS_AGAIN[name]}")
    omitted = len({letter_origin(letter) for letter in picked}) - len(copies) - len(control)
    if not picked:
        echo("no such dead letter")
    elif omitted:
        why = "written again before, without a value, or cut short and no longer in their topic"
        echo(f"{omitted} left out: {why}")


@dead_letters.command()
@click.argument("origins", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Take every dead letter, or every one of --class.")
@class_option
@click.option("--reason", required=True, help="Say why they stay as they are; it is kept in the log.")
@with_settings
def dismiss(settings: Settings, origins: tuple[str, ...], every: bool, error_class: str | None, reason: str) -> None:
    """Set the dead letters of ORIGINS (topic:partition:offset) aside for good: no list, count or alarm has them.

    Their bytes stay in the topic for its retention, and in ClickHouse. A record that fails again has a new letter.
    """
    from rollbus.consumers.dead_letters import letter_origin, origins_without_letter, select_letters, set_aside
    from rollbus.consumers.dead_letters_kafka import dismiss as write_dismissals
    from rollbus.consumers.dead_letters_kafka import read_dead_letters
    from rollbus.schemas.wall_clock import wall_clock_ms

    if not origins and not every:
        raise ConfigurationError("give origins as `rollbus dead-letters list` shows them, or --all")
    require_topics(settings, "dead-letters")
    letters = asyncio.run(read_dead_letters(settings.kafka, settings.namespace))
    picked = select_letters(letters, origins=origins, error_class=error_class, namespace=settings.namespace)
    if unknown := origins_without_letter(picked, origins, namespace=settings.namespace):
        raise ConfigurationError(f"no dead letter of {', '.join(unknown)}; see `rollbus dead-letters list`")
    dismissals = set_aside(picked, reason, wall_clock_ms())
    asyncio.run(write_dismissals(settings.kafka, settings.namespace, dismissals))
    for letter in dismissals:
        echo(f"set aside {letter_origin(letter)}")
    if not dismissals:
        echo("no such dead letter")
