"""`rollbus sink`: write every topic into ClickHouse, and rebuild the tables from the log."""

import asyncio
from pathlib import Path

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.needs import missing_topic, require_topics
from rollbus.cli.output import Console, Table, echo, show_progress
from rollbus.cli.root import Settings, log_to_stderr, with_settings
from rollbus.schemas.errors import ConfigurationError, nearest


@click.group(cls=Verbs)
def sink() -> None:
    """Write every topic into ClickHouse, and rebuild the tables from the log."""


@sink.command()
@with_settings
def run(settings: Settings) -> None:
    """Write every record into its table until SIGTERM or Ctrl-C.

    It commits offsets after ClickHouse has confirmed the insert.
    """
    from rollbus.consumers.clickhouse.sink.sink import run_sink

    log_to_stderr()
    run_sink(settings.sink_settings(), heart=settings.heart("sink"))


@sink.command()
@with_settings
def status(settings: Settings) -> None:
    """Show how far the sink is behind, per partition."""
    from rollbus.consumers.clickhouse.sink.status import read_sink_status

    rows = asyncio.run(read_sink_status(settings.sink_settings()))
    if not rows:
        raise missing_topic(settings, "episode-events")
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
    help="Read an export of the log (see `rollbus sink export`) instead of Kafka.",
)
@with_settings
def rebuild(settings: Settings, tables: tuple[str, ...], folder: Path | None) -> None:
    """Rebuild TABLES (or all) from the log and prove that nothing was lost.

    It fills new tables, compares them with the old ones range by range, and puts them in their place. Meanwhile
    questions are answered, and the sink may run.
    """
    from rollbus.consumers.clickhouse.maintain.rebuild import Rebuilt
    from rollbus.consumers.clickhouse.maintain.rebuild import rebuild as rebuild_tables
    from rollbus.consumers.clickhouse.sink.kafka_log import KafkaLog
    from rollbus.consumers.clickhouse.sink.log_files import FileLog, Log
    from rollbus.consumers.clickhouse.store.client import ClickHouse
    from rollbus.consumers.clickhouse.store.migrator import migrate

    async def run(log: Log) -> Rebuilt:
        with show_progress("reading the log") as progress:
            return await rebuild_tables(client, log, settings.namespace, tables, progress=progress)

    async def from_kafka() -> Rebuilt:
        async with KafkaLog(settings.kafka, settings.namespace) as log:
            return await run(log)

    migrate(settings.clickhouse)
    client = ClickHouse(settings.clickhouse)
    try:
        rebuilt = asyncio.run(from_kafka() if folder is None else run(FileLog(folder)))
    finally:
        client.close()
    table = Table("table", "rows", "ranges equal", "ranges mended")
    for one in rebuilt.tables:
        table.add_row(one.table, str(one.rows), str(one.equal_ranges), "\n".join(one.other_ranges) or "0")
    Console().print(table)
    echo(f"{rebuilt.records} records read, {rebuilt.verified_ranges} ranges hold the bytes that the sink wrote")
    if rebuilt.forgotten:
        echo(f"{rebuilt.left_out} rows of {rebuilt.forgotten} forgotten episodes were left out")


@sink.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--topic", "topics", multiple=True, help="Export only this topic, without the prefix; repeatable.")
@with_settings
def export(settings: Settings, folder: Path, topics: tuple[str, ...]) -> None:
    """Write the log into FOLDER, so that tables can be rebuilt after Kafka has deleted it."""
    from rollbus.consumers.clickhouse.sink.kafka_log import KafkaLog
    from rollbus.consumers.clickhouse.sink.log_files import export_log
    from rollbus.schemas.topics import TOPICS

    async def run() -> int:
        async with KafkaLog(settings.kafka, settings.namespace) as log:
            with show_progress("reading the log") as progress:
                return await export_log(log, topics or [topic.name for topic in TOPICS], folder, progress=progress)

    names = [topic.name for topic in TOPICS]
    if unknown := sorted(set(topics) - set(names)):
        raise ConfigurationError(f"there is no topic {unknown[0]!r}; {nearest(unknown[0], names)}")
    folder.mkdir(parents=True, exist_ok=True)
    require_topics(settings, "episode-events")
    echo(f"{asyncio.run(run())} records in {folder}")
