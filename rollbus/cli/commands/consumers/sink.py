"""`rollbus sink`: write every topic into ClickHouse, and rebuild the tables from the log."""

import asyncio
from collections.abc import Mapping

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.losses import show_losses, yes_option
from rollbus.cli.required_topics import missing_topic
from rollbus.cli.root import Settings, with_settings
from rollbus.terminal.log_lines import log_to_stderr
from rollbus.terminal.output import Console, OutputTable, echo, format_count
from rollbus.terminal.progress import show_progress


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
    table = OutputTable("topic", "partition", "committed", "end", "lag")
    for row in rows:
        committed = "–" if row.committed is None else str(row.committed)
        table.add_row(row.topic, str(row.partition), committed, str(row.end), str(row.lag))
    Console().print(table)


@sink.command("accept-loss")
@yes_option
@with_settings
def accept_loss_(settings: Settings, yes: bool) -> None:
    """Continue after topics were made again, restored or moved, or a tool has set offsets. Stop the sinks first.

    Without --yes nothing is changed. Each loss is kept as a dead letter of class DataLossError. Rows that were made
    from another log stay in the tables.
    """
    from rollbus.consumers.clickhouse.sink.accept_kafka import accept_loss
    from rollbus.schemas.wall_clock import wall_clock_ms

    losses = asyncio.run(accept_loss(settings.sink_settings(), now_ms=wall_clock_ms(), dry_run=not yes))
    meaning = "Rows of the old log stay, next to those of the new one. To continue, stop the sinks and add --yes."
    show_losses("sink", losses, accepted=yes, meaning=meaning)


@sink.command()
@click.argument("tables", nargs=-1)
@click.option(
    "--from", "url", metavar="URL", help="Read this archive of the log (see `rollbus archive`) instead of Kafka."
)
@with_settings
def rebuild(settings: Settings, tables: tuple[str, ...], url: str | None) -> None:
    """Rebuild TABLES (or all) from the log and prove that nothing was lost.

    It fills new tables, compares them with the old ones range by range, and puts them in their place. Meanwhile
    questions are answered, and the sink may run. A lost table is made again, and so is a lost database.
    """
    from rollbus.consumers.clickhouse.maintain.rebuild import Rebuilt
    from rollbus.consumers.clickhouse.maintain.rebuild import rebuild as rebuild_tables
    from rollbus.consumers.clickhouse.sink.kafka_log import KafkaSinkLog
    from rollbus.consumers.clickhouse.sink.log import Log
    from rollbus.consumers.clickhouse.sink.status import read_sink_status
    from rollbus.consumers.clickhouse.store.client import ClickHouse
    from rollbus.consumers.clickhouse.store.migrator import migrate

    async def run(log: Log, committed: Mapping[tuple[str, int], int]) -> Rebuilt:
        with show_progress("reading the log") as progress:
            return await rebuild_tables(client, log, settings.namespace, tables, committed=committed, progress=progress)

    async def from_kafka() -> Rebuilt:
        rows = await read_sink_status(settings.sink_settings())
        committed = {(row.topic, row.partition): row.committed for row in rows if row.committed is not None}
        async with KafkaSinkLog(settings.kafka, settings.namespace) as log:
            return await run(log, committed)

    async def from_archive(url: str) -> Rebuilt:
        from rollbus.archive.archive import open_archive
        from rollbus.archive.log import ArchiveLog

        return await run(ArchiveLog(await asyncio.to_thread(open_archive, url)), {})

    migrate(settings.clickhouse, rebuilding=True)
    client = ClickHouse(settings.clickhouse)
    try:
        rebuilt = asyncio.run(from_kafka() if url is None else from_archive(url))
    finally:
        client.close()
    table = OutputTable("table", "rows", "ranges equal", "ranges mended")
    for rebuilt_table in rebuilt.tables:
        table.add_row(
            rebuilt_table.table,
            str(rebuilt_table.rows),
            str(rebuilt_table.equal_ranges),
            "\n".join(rebuilt_table.other_ranges) or "0",
        )
    Console().print(table)
    verified = format_count(rebuilt.verified_ranges, "range")
    echo(f"{format_count(rebuilt.records, 'record')} read; with the bytes that the sink wrote: {verified}")
    if rebuilt.uncompared_ranges:
        ranges = format_count(rebuilt.uncompared_ranges, "range")
        echo(f"compared by their rows alone, as the archive lacks forgotten episodes: {ranges}")
    if rebuilt.noted_ranges:
        echo(f"not known to have been read, and noted now: {format_count(rebuilt.noted_ranges, 'range')}")
    if rebuilt.forgotten:
        forgotten = format_count(rebuilt.forgotten, "forgotten episode")
        echo(f"left out: {format_count(rebuilt.left_out, 'row')} of {forgotten}")
