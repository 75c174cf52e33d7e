"""`rollbus resample run`: run your agent again on openings that traffic brought only once."""

import asyncio
from collections.abc import Mapping

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.losses import show_losses, yes_option
from rollbus.cli.number_option import Number
from rollbus.cli.objects import load_object
from rollbus.cli.required_topics import require_topics
from rollbus.cli.root import Settings, with_settings
from rollbus.cli.signals import stop_on_signals
from rollbus.runtime.log_mark import AcceptedLoss
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.events import LogprobMode
from rollbus.terminal.log_lines import log_to_stderr
from rollbus.terminal.output import echo


@click.group(cls=Verbs)
def resample() -> None:
    """Run your agent again on openings that came only once."""


@resample.command()
@click.argument("agent", metavar="MODULE:FUNCTION")
@click.option("--run", "run_id", help="Fill the groups of this run; needed if the settings have several.")
@click.option("--concurrency", type=click.IntRange(min=1), default=4, help="Make this many attempts at once.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Number(0, min_open=True),
    default=300.0,
    help="End an attempt after this many seconds.",
)
@click.option(
    "--logprob-mode",
    type=click.Choice(["raw", "processed"]),
    help="Say which log-probs the server reports; default: those of `art_server:`, if it serves the run's model. "
    "At a temperature other than 1, attempts are trained only if they are `processed`.",
)
@with_settings
def run(
    settings: Settings,
    agent: str,
    run_id: str | None,
    concurrency: int,
    timeout_s: float,
    logprob_mode: LogprobMode | None,
) -> None:
    """Run your agent on what the run asks for, until SIGTERM or Ctrl-C.

    The function, sync or async, receives a rollbus.resample.Attempt. The run's setting `resample` limits how many
    attempts the stream worker asks for. An attempt is made at most once. MODULE is searched in this folder first.
    """
    import rollbus.producers
    from rollbus.resample.attempts import Resampler
    from rollbus.resample.requests import resample as resample_run
    from rollbus.runtime.health.heart import beating

    log_to_stderr()
    config = settings.run(run_id)
    if config.resample is None:
        raise ConfigurationError(
            f"run {config.run_id!r} asks for no attempts; give it `resample: {{attempts_per_hour: 100}}`"
        )
    function = load_object(agent, "agent")
    require_topics(settings, "resample-requests")
    recorder = rollbus.producers.init(
        security=settings.kafka,
        namespace=settings.namespace,
        producer="resample",
        logprob_mode=logprob_mode or logprob_mode_of(settings, config.model),
    )
    resampler = Resampler(function, recorder, concurrency=concurrency, timeout_s=timeout_s)

    async def main() -> None:
        async with beating(settings.heart("resample"), lambda: resampler.report(config.run_id)):
            await resample_run(settings.stream_settings(), config.run_id, resampler, stop=stop_on_signals())
        echo(", ".join(f"{count} {name}" for name, count in sorted(resampler.counts.items())) or "no attempts")

    loop = asyncio.Runner()
    try:
        loop.run(main())
    finally:
        recorder.close()
        if not resampler.left_behind:  # closing would wait for them without end
            loop.close()


@resample.command("accept-loss")
@click.option("--run", "run_id", help="Use this run; needed if the settings have several.")
@yes_option
@with_settings
def accept_loss_(settings: Settings, run_id: str | None, yes: bool) -> None:
    """Continue after `resample-requests` was made again, restored or moved, or a tool has set the offset.

    Stop the processes that make attempts first. Without --yes nothing is changed. The loss is kept as a dead letter of
    class DataLossError.
    """
    from rollbus.resample.requests import STAGE, resample_positions
    from rollbus.runtime.kafka.partitions import places_of
    from rollbus.schemas.topics import RESAMPLE_REQUESTS
    from rollbus.schemas.wall_clock import wall_clock_ms

    require_topics(settings, "resample-requests", "dead-letters")
    run, stream = settings.run(run_id).run_id, settings.stream_settings()

    async def main() -> Mapping[tuple[str, int], AcceptedLoss]:
        places = await places_of(stream.kafka, [RESAMPLE_REQUESTS.full_name(stream.namespace)])
        return await resample_positions(stream, run).accept(
            places, namespace=stream.namespace, stage=STAGE, now_ms=wall_clock_ms(), dry_run=not yes
        )

    meaning = "An attempt that was made already may be made again. To continue, stop the agents and add --yes."
    show_losses(f"attempts of run {run}", asyncio.run(main()), accepted=yes, meaning=meaning)


def logprob_mode_of(settings: Settings, model: str) -> LogprobMode:
    """Return which log-probs our own server reports for a model; `unknown` for a model that it does not serve."""
    return settings.art_server.logprobs_mode if settings.art_server.model == model else "unknown"
