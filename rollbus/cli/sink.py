"""`rollbus sink`: every topic into ClickHouse."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.needs import needs_topic, no_topic
from rollbus.cli.output import Console, Table, counting
from rollbus.cli.root import log_to_stderr, with_settings
from rollbus.schemas.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from rollbus.settings import Settings


@click.group(cls=Verbs)
def sink() -> None:
    """Every topic into ClickHouse."""


@sink.command()
@with_settings
def run(settings: "Settings") -> None:
    """Write every record into its table until SIGTERM or Ctrl-C.

    Offsets are committed after the insert is confirmed.
    """
    from rollbus.consumers.clickhouse.sink import run_sink

    log_to_stderr()
    run_sink(settings.sink_settings())


@sink.command()
@with_settings
def status(settings: "Settings") -> None:
    """Show how far the sink is behind, per partition."""
    from rollbus.consumers.clickhouse.kafka_status import sink_status

    rows = sink_status(settings.sink_settings())
    if not rows:
        raise no_topic(settings, "episode-events")
    table = Table("topic", "partition", "committed", "end", "lag")
    for row in rows:
        committed = "–" if row.committed is None else str(row.committed)
        table.add_row(row.topic, str(row.partition), committed, str(row.end), str(row.lag))
    Console().print(table)


@sink.command()
@click.argument("tables", nargs=-1)
@click.option(
    "--from",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="An export of the log (see `rollbus sink export`) instead of Kafka.",
)
@with_settings
def rebuild(settings: "Settings", tables: tuple[str, ...], folder: Path | None) -> None:
    """Make TABLES (all without any) anew from the log and prove that nothing was lost.

    New tables are made beside the old ones, compared with them range by range, and put in their place:
    questions are answered meanwhile, and the sink may run.
    """
    from rollbus.consumers.clickhouse.client_clickhouse import ClickHouse
    from rollbus.consumers.clickhouse.kafka_log import KafkaLog
    from rollbus.consumers.clickhouse.log_files import FileLog, Log
    from rollbus.consumers.clickhouse.migrator import migrate
    from rollbus.consumers.clickhouse.rebuild import Rebuilt
    from rollbus.consumers.clickhouse.rebuild import rebuild as rebuild_tables

    async def run(log: Log) -> Rebuilt:
        with counting("reading the log") as progress:
            return await rebuild_tables(client, log, settings.namespace, tables, progress=progress)

    async def from_kafka() -> Rebuilt:
        async with KafkaLog(settings.kafka, settings.namespace) as log:
            return await run(log)

    migrate(settings.clickhouse)
    client = ClickHouse(settings.clickhouse)
    try:
        made = asyncio.run(from_kafka() if folder is None else run(FileLog(folder)))
    finally:
        client.close()
    table = Table("table", "rows", "ranges equal", "ranges mended")
    for found in made.tables:
        table.add_row(found.table, str(found.rows), str(found.equal_ranges), "\n".join(found.other_ranges) or "0")
    Console().print(table)
    click.echo(f"{made.records} records read, {made.verified_ranges} ranges hold the bytes that the sink wrote")
    if made.forgotten:
        click.echo(f"{made.left_out} rows of {made.forgotten} forgotten episodes were left out")


@sink.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--topic", "topics", multiple=True, help="Only this topic, without the prefix; repeatable.")
@with_settings
def export(settings: "Settings", folder: Path, topics: tuple[str, ...]) -> None:
    """Write the log into FOLDER, from which tables can be rebuilt after Kafka has deleted it."""
    from rollbus.consumers.clickhouse.kafka_log import KafkaLog
    from rollbus.consumers.clickhouse.log_files import export_log
    from rollbus.schemas.topics import TOPICS

    async def run() -> int:
        async with KafkaLog(settings.kafka, settings.namespace) as log:
            with counting("reading the log") as progress:
                return await export_log(log, topics or [topic.name for topic in TOPICS], folder, progress=progress)

    names = [topic.name for topic in TOPICS]
    if unknown := sorted(set(topics) - set(names)):
        raise ConfigurationError(f"there is no topic {unknown[0]!r}; {nearest(unknown[0], names)}")
    folder.mkdir(parents=True, exist_ok=True)
    needs_topic(settings, "episode-events")
    click.echo(f"{asyncio.run(run())} records in {folder}")
