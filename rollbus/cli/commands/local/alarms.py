"""`rollbus alarms`: watch the log and report what goes wrong; write what Prometheus and Grafana need."""

import asyncio
from pathlib import Path

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.root import Settings, with_settings
from rollbus.cli.signals import stop_on_signals
from rollbus.terminal.log_lines import log_to_stderr
from rollbus.terminal.output import echo


@click.group(cls=Verbs)
def alarms() -> None:
    """Watch the log, and report what goes wrong; see docs/runbook.md."""


@alarms.command()
@click.option("--url", envvar="ROLLBUS_ALARMS_URL", help="Post each alarm here, as JSON; without it, only log them.")
@with_settings
def run(settings: Settings, url: str | None) -> None:
    """Report each problem when it begins and when it ends, until SIGTERM or Ctrl-C.

    It reads the log alone, from any machine: silence, growing lag, no step, falling reward, no signal, failed steps,
    dead letters, disk, clocks, and a broker that is away. `health: alarms:` in the settings holds the limits.
    """
    from rollbus.consumers.loggers.webhook import Webhook
    from rollbus.health.reporter import HealthReporter
    from rollbus.health.status import FunnelCounter
    from rollbus.runtime.health.heart import beating
    from rollbus.schemas.wall_clock import wall_clock_ms

    log_to_stderr()
    tell = Webhook(url).post if url else None
    limits, interval_s = settings.health.alarms, settings.health.interval_s

    async def main() -> None:
        heart = settings.heart("alarms")
        watch = HealthReporter(
            settings.kafka,
            settings.namespace,
            limits,
            interval_s,
            tell,
            wall_clock_ms,
            own_process=lambda: heart.process,
            counter=FunnelCounter(settings),
        )
        async with beating(heart, watch.report):
            await watch.run(stop_on_signals())

    asyncio.run(main())


@alarms.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@with_settings
def files(settings: Settings, folder: Path) -> None:
    """Write Prometheus' scrape and rule files and Grafana's provisioning with a dashboard into FOLDER.

    The addresses in them are those of the settings.
    """
    from rollbus.health.monitoring import Addresses, write_files

    clickhouse = settings.clickhouse
    addresses = Addresses(
        metrics=settings.metrics_addresses(),
        clickhouse_host=clickhouse.host,
        clickhouse_port=clickhouse.port,
        clickhouse_protocol="https" if clickhouse.secure else "http",
        database=clickhouse.database,
    )
    for path in write_files(folder, addresses):
        echo(str(path))
    if not addresses.metrics:
        echo(
            "no process has a port for /metrics, so Prometheus has nothing to scrape; set `health: metrics_ports:`, "
            "such as {worker: 9464, trainer: 9465, sink: 9466, art-server: 9467}, and write the files again",
            err=True,
        )
