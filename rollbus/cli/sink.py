"""`rollbus sink`: every topic into ClickHouse."""

from typing import TYPE_CHECKING

import click

from rollbus.cli.output import Console, Table
from rollbus.cli.root import log_to_stderr, with_settings

if TYPE_CHECKING:
    from rollbus.settings import Settings


@click.group()
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

    table = Table("topic", "partition", "committed", "end", "lag")
    for row in sink_status(settings.sink_settings()):
        committed = "–" if row.committed is None else str(row.committed)
        table.add_row(row.topic, str(row.partition), committed, str(row.end), str(row.lag))
    Console().print(table)
