"""`rollbus resample run`: your agent again, on openings that traffic brought only once."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.needs import needs_topic
from rollbus.cli.root import log_to_stderr, with_settings
from rollbus.schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbus.settings import Settings


@click.group(cls=Verbs)
def resample() -> None:
    """More attempts at openings that traffic brings only once."""


@resample.command()
@click.argument("agent", metavar="MODULE:FUNCTION")
@click.option("--run", "run_id", help="The run whose groups are filled; the only one without.")
@click.option("--concurrency", type=click.IntRange(min=1), default=4, show_default=True, help="Attempts at once.")
@click.option("--timeout", "timeout_s", type=float, default=300.0, show_default=True, help="Seconds for one attempt.")
@with_settings
def run(settings: "Settings", agent: str, run_id: str | None, concurrency: int, timeout_s: float) -> None:
    """Run your agent on what the run asks for, until SIGTERM or Ctrl-C.

    The function is given a rollbus.resample.Attempt, sync or async. How many attempts are asked for is the run's
    setting `resample`, kept by the stream worker; an attempt is made at most once. MODULE is looked for in this folder
    first.
    """
    import rollbus.producers
    from rollbus.harness.calling import find
    from rollbus.resample import Resampler
    from rollbus.resample_kafka import resample as resample_run

    log_to_stderr()
    config = settings.run(run_id)
    if config.resample is None:
        raise ConfigurationError(
            f"run {config.run_id!r} asks for no attempts; give it `resample: {{attempts_per_hour: 100}}`"
        )
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    function = find(agent, what="agent")
    needs_topic(settings, "resample-requests")
    recorder = rollbus.producers.init(security=settings.kafka, namespace=settings.namespace, producer="resample")

    resampler = Resampler(function, recorder, concurrency=concurrency, timeout_s=timeout_s)

    async def main() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await resample_run(settings.stream_settings(), config.run_id, resampler, stop=stop)
        click.echo(", ".join(f"{count} {name}" for name, count in sorted(resampler.counts.items())) or "no attempts")

    loop = asyncio.Runner()
    try:
        loop.run(main())
    finally:
        recorder.close()
        if not resampler.left:  # closing would wait for them, for ever
            loop.close()
