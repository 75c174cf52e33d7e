"""`rollbus policy estimate`: what a version would have earned on recorded traffic."""

import asyncio
import re
from typing import TYPE_CHECKING

import click

from rollbus.cli.commands.trainer.trainer import run_option, trainer_settings
from rollbus.cli.groups import Verb
from rollbus.cli.root import Settings, with_settings
from rollbus.schemas.wall_clock import wall_clock_ms
from rollbus.terminal.log_lines import log_to_stderr
from rollbus.terminal.output import Console, OutputTable, echo, format_count
from rollbus.terminal.progress import show_progress

if TYPE_CHECKING:
    from rollbus.estimates.estimate import Estimated
    from rollbus.estimates.estimators import Interval
    from rollbus.estimates.sample import Period


@click.command(cls=Verb)
@run_option
@click.argument("version", type=int, required=False)
@click.option("--since", default="7d", show_default=True, help="Take the traffic of so long: 7d, 12h, 30m.")
@click.option(
    "--episodes", type=click.IntRange(min=100), default=2000, show_default=True, help="Sample so many at most."
)
@click.option("--kl-to", type=int, metavar="VERSION", help="Measure also how far it is from this version, such as 0.")
@click.option("--replay", "replay_name", metavar="NAME", help="Take the rewards of a replay instead of those recorded.")
@click.option("--admitted", is_flag=True, help="With --replay: only the episodes that its curriculum admitted.")
@click.option("--url", help="Ask this endpoint, ending in /v1; without it, the one of the ART server.")
@click.option("--follow", is_flag=True, help="Estimate the newest candidate as new ones come, until SIGTERM or Ctrl-C.")
@with_settings
def estimate(
    settings: Settings, run_id: str | None, version: int | None, since: str, episodes: int, kl_to: int | None,
    replay_name: str | None, admitted: bool, url: str | None, follow: bool,
) -> None:  # fmt: skip
    """Estimate what a version would have earned on recorded traffic; the record counts for `delivery: checks:`.

    Nothing is sampled: the model's endpoint says how likely the version finds what was recorded. If it differs too
    much from those that answered, the estimate is refused.
    """
    from rollbus.schemas.errors import ConfigurationError

    if (version is None) != follow:
        raise ConfigurationError("name a version, or follow all candidates by --follow: one of both")
    if (admitted and replay_name is None) or (follow and replay_name is not None):
        raise ConfigurationError("--admitted needs --replay, and --follow estimates by the recorded rewards alone")
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?[smhd]", since):
        raise ConfigurationError(f"--since {since}: write 7d, 12h, 30m or 90s")
    topics = ("scores", "trajectories", "evaluations", "delivery-log", "policy-versions", "training-steps")
    trainer_settings(settings, run_id, *topics)
    log_to_stderr()
    asyncio.run(_estimate(settings, run_id, version, since, episodes, kl_to, replay_name, admitted, url))


async def _estimate(
    settings: Settings, run_id: str | None, version: int | None, since: str, episodes: int, kl_to: int | None,
    replay_name: str | None, admitted: bool, url: str | None,
) -> None:  # fmt: skip
    from rollbus.cli.signals import stop_on_signals
    from rollbus.estimates.backlog import describe_backlog
    from rollbus.estimates.candidate_estimator import CandidateEstimator, Progress
    from rollbus.estimates.estimate import estimate_version
    from rollbus.estimates.sample import read_period, read_rescored
    from rollbus.estimates.scoring import EndpointScorer
    from rollbus.runtime.health.heart import beating
    from rollbus.runtime.kafka.payload import KafkaPayload
    from rollbus.streams.replay.kafka.manifest import find_manifest
    from rollbus.streams.replay.plan.range import parse_bound
    from rollbus.trainer.operate.publishing import publish_evaluation

    run, stream, trainer = settings.run(run_id), settings.stream_settings(), settings.trainer_settings(run_id)
    rescored = None
    if replay_name is not None:
        namespace = (await find_manifest(stream, replay_name)).namespace
        replay_stream = stream.model_copy(update={"namespace": namespace})
        rescored = await read_rescored(replay_stream, run.run_id, only_admitted=admitted)
    base_url = url or await _find_endpoint(settings, run_id)
    token = settings.token_of(base_url)
    scorer = EndpointScorer(base_url, token.get_secret_value() if token else "none")
    payload = KafkaPayload(stream.kafka, stream.namespace)

    async def estimate_one(number: int, progress: Progress) -> None:
        since_ms = parse_bound(f"{since} ago", now_ms=wall_clock_ms()).time_ms or 0
        wait_ms = run.delivery.wait_ms if run.delivery is not None else 0
        period = await read_period(
            stream, run.model, since_ms=since_ms, most=episodes, wait_ms=wait_ms, rescored=rescored
        )
        estimation = await estimate_version(
            period, run, settings.scoring, number, payload=payload, scorer=scorer, kl_to=kl_to, progress=progress
        )
        if rescored is None:
            await publish_evaluation(stream.kafka, stream.namespace, estimation.to_evaluation(run.model, run.run_id))
        _show(estimation, period, wait_ms)
        if estimation.estimates.overlap.refusal and (backlog := await describe_backlog(stream)) is not None:
            echo(backlog)

    try:
        if version is None:
            following = CandidateEstimator(trainer, estimate_one)
            async with beating(settings.heart("estimate"), following.report):
                await following.run(stop_on_signals())
        else:
            with show_progress(f"version {version} is asked") as progress:
                await estimate_one(version, progress)
    finally:
        await scorer.close()
        await payload.close()


async def _find_endpoint(settings: Settings, run_id: str | None) -> str:
    """Return the address of the model endpoint that the backend names; raises ConfigurationError without one."""
    from rollbus.schemas.errors import ConfigurationError
    from rollbus.trainer.process import open_backend

    async with open_backend(settings.trainer_settings(run_id)) as backend:
        inference_url = (await backend.capabilities()).inference_url
    if inference_url is None:
        raise ConfigurationError("the backend serves no model to ask; name an endpoint by --url")
    return inference_url


def _show(estimated: "Estimated", period: "Period", wait_ms: int) -> None:
    from rollbus.estimates.estimators import BEST
    from rollbus.streams.stages.delivery.evidence.delays import ASSUMPTION, share_by

    estimates, overlap = estimated.estimates, estimated.estimates.overlap
    echo(
        f"version {estimated.version}: {format_count(overlap.episodes, 'episode')}, "
        f"worth {overlap.effective:.0f} of its own; "
        f"the log shows {1 - overlap.missing:.0%} of what it would do (mean weight {overlap.mean_weight:.2f}, "
        f"{overlap.clipped} clipped at {overlap.clip:.1f})"
    )
    for reason, count in sorted(estimated.left_out.items()):
        echo(f"left out: {count} {reason}")
    if estimates.outside:
        echo(f"{estimates.outside} rewards lie outside their bounds; what is estimated takes them as the bound")
    if curve := period.delays:
        point = share_by(curve, max(wait_ms, 1))
        echo(
            f"rewards: {point.share:.0%} [{point.low:.0%}, {point.high:.0%}] come within {wait_ms} ms, "
            f"{curve[-1].share:.0%} within {curve[-1].age_ms} ms; {ASSUMPTION}"
        )
    if overlap.refusal:
        echo(f"no estimate: {overlap.refusal}")
        return
    table = OutputTable("", "earned (95 %)", "more than the log")
    table.add_row("log", _interval(estimates.log), "")
    for name, method_estimate in estimates.by_name.items():
        mark = f"{name} ◀" if name == BEST else name
        table.add_row(
            mark.replace("_", " "),
            _interval(method_estimate.earned),
            _interval(method_estimate.difference, signed=True),
        )
    Console().print(table)
    if estimated.divergence is not None:
        echo(f"KL divergence per token: {_interval(estimated.divergence)} nats")
    if estimated.no_divergence:
        echo(f"no KL divergence: {estimated.no_divergence}")


def _interval(interval: "Interval", *, signed: bool = False) -> str:
    form = "+.4f" if signed else ".4f"
    return f"{interval.value:{form}} [{interval.low:{form}}, {interval.high:{form}}]"
