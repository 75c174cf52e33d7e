"""`rollbus replay`: decide a range of the log again, under another reward, grouping or curriculum."""

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, TypedDict, Unpack

import click
from click.core import ParameterSource

from rollbus.cli.groups import Verbs
from rollbus.cli.replay.plan import make_plan, make_replay
from rollbus.cli.replay.printing import ProgressLine, ShadowProgress, show_comparison, show_manifest, show_replays
from rollbus.cli.required_topics import require_topics
from rollbus.cli.root import Settings, SettingsFile, with_options, with_settings
from rollbus.cli.signals import stop_on_signals
from rollbus.schemas.errors import ConfigurationError
from rollbus.terminal.log_lines import log_to_stderr
from rollbus.terminal.output import Console, echo, format_count
from rollbus.terminal.progress import show_progress

if TYPE_CHECKING:
    from rollbus.schemas.records.replays import ReplayFeedback, ReplayManifest
    from rollbus.streams.replay.plan.plan import ReplayPlan

other_decisions = with_options(
    click.option("--reward", metavar="F", help="Use another reward: YAML, a registered name, or file.py:function."),
    click.option("--grouping", metavar="F", help="Use another grouping: YAML, or changes such as group_size=4."),
    click.option("--curriculum", metavar="F", help="Use another curriculum: YAML, a mode, or changes."),
    click.option("--rescore", is_flag=True, help="Ask reward functions again, judges too."),
)


class OtherDecisions(TypedDict):
    """The values of `other_decisions`."""

    reward: str | None
    grouping: str | None
    curriculum: str | None
    rescore: bool


NAME_HELP = "Name the replay; its topics begin with `replay-NAME.` and the namespace."


@click.group(cls=Verbs, invoke_without_command=True)
@with_options(
    click.option(
        "--from",
        "start",
        metavar="BOUND",
        default="",
        show_default=False,
        help="Begin at: earliest, a time, '2h ago', tick:N, offsets.",
    ),
    click.option("--to", "end", metavar="BOUND", default="latest", help="End at this bound."),
    click.option(
        "--stage", "stages", multiple=True, help="Replay only this stage, from its recorded input; repeatable."
    ),
    other_decisions,
    click.option(
        "--feedback",
        type=click.Choice(["recorded", "end"]),
        default="recorded",
        help="Count feedback when it came, or give every episode the feedback known at the range's end.",
    ),
    click.option("--as", "name", metavar="NAME", help=NAME_HELP),
    click.option("--allow-missing", is_flag=True, help="Continue without what retention has deleted."),
    click.option("--dry-run", is_flag=True, help="Write nothing; show digests and counts."),
    click.option(
        "--processes",
        type=click.IntRange(min=1),
        help="Decide the first stage's partitions in this many processes; by default one per core if that is faster.",
    ),
    click.option("--diff", type=click.Choice(["live"]), help="Compare with what live made of the same range."),
)
@click.pass_context
def replay(
    ctx: click.Context,
    /,
    start: str,
    end: str,
    stages: tuple[str, ...],
    feedback: "ReplayFeedback",
    name: str | None,
    allow_missing: bool,
    dry_run: bool,
    processes: int | None,
    diff: str | None,
    **decisions: Unpack[OtherDecisions],
) -> None:
    """Decide a range of the log again: another reward, grouping or curriculum, and the same bytes every time.

    `rollbus replay --from '2h ago' --reward fixed.yaml --as fixed` writes into its own topics,
    `replay-fixed.rollbus.…`. Live topics are only read. Agents are never called, and a judge only with --rescore.
    """
    options = [option.opts[0] for option in ctx.command.params if _is_given(ctx, option)]
    verb = ctx.invoked_subcommand
    if verb is None and not options:
        echo(ctx.get_help())
    elif verb is None:
        if not start:
            raise click.UsageError("say where to begin: --from earliest, a time, '2h ago', tick:N or offsets")
        source: SettingsFile = ctx.obj
        settings = source.load()
        if diff and dry_run:
            raise ConfigurationError("--diff live compares records in topics, and --dry-run writes none; leave one out")
        plan = make_plan(
            settings,
            start=start,
            end=end,
            stages=stages,
            feedback=feedback,
            name=name,
            allow_missing=allow_missing,
            dry_run=dry_run,
            **decisions,
        )
        _run_replay(settings, plan, decisions["reward"], dry_run=dry_run, processes=processes)
        if diff:
            _compare(settings, "live", plan.name)
    elif options:
        raise click.UsageError(f"{', '.join(options)} before {verb} would have no effect; write it after {verb}")


def _is_given(ctx: click.Context, option: click.Parameter) -> bool:
    """Whether the user wrote this option."""
    return ctx.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE


def _run_replay(
    settings: Settings, plan: "ReplayPlan", reward: str | None, *, dry_run: bool, processes: int | None
) -> None:
    from rollbus.streams.worker.process import prepare_process

    require_topics(settings, "exclusions")
    console = Console(stderr=True)
    prepare_process()
    _silence_dead_letters()
    try:
        with ProgressLine() as line:
            replay = make_replay(settings, plan, reward, watch=line.watch(), processes=processes)
            manifest = asyncio.run(replay.run(dry_run=dry_run))
    except KeyboardInterrupt:
        if not dry_run:
            console.print(
                f"replay {plan.name!r} is not complete. The same command continues it if --from and --to still mean "
                "the same range (`latest` on a log that grows does not); if not, it begins again"
            )
        raise
    show_manifest(manifest, dry_run=dry_run, drops=replay.drops, failures=replay.failures)
    most_open = format_count(replay.open_rows, "row")
    console.print(f"{format_count(line.records, 'record')} in {line.seconds:.1f} s; open at once at most: {most_open}")


def _silence_dead_letters() -> None:
    """Log no line for each dead letter during this command: live has logged them, and the table counts them."""
    letters = logging.getLogger("rollbus.streams.exactly_once.processing")
    click.get_current_context().call_on_close(partial(letters.setLevel, letters.level))
    letters.setLevel(logging.ERROR)


@replay.command()
@click.option("--from", "start", metavar="BOUND", default="latest", help="Begin at this bound.")
@other_decisions
@click.option("--as", "name", metavar="NAME", required=True, help=NAME_HELP)
@with_settings
def shadow(settings: Settings, start: str, name: str, **decisions: Unpack[OtherDecisions]) -> None:
    """Follow the live topics with another reward, grouping or curriculum, until SIGTERM or Ctrl-C.

    It writes into its own topics, and continues when it is started again. `rollbus replay promote NAME` makes live
    decide the same.
    """
    from rollbus.runtime.health.heart import beating
    from rollbus.streams.worker.process import prepare_process

    first = "scoring" if decisions["reward"] or decisions["rescore"] else "grouping"
    stages = ("scoring",) * (first == "scoring") + ("grouping", "curriculum")
    plan = make_plan(
        settings,
        **decisions,
        start=start,
        name=name,
        end="latest",
        stages=stages,
        feedback="recorded",
        allow_missing=False,
        dry_run=False,
    )
    require_topics(settings, "replays")
    log_to_stderr()
    prepare_process()

    followed = ShadowProgress(plan.name)

    async def until_signal() -> "ReplayManifest":
        shadow_replay = make_replay(
            settings, plan, decisions["reward"], watch=followed.watch(), follow=stop_on_signals()
        )
        async with beating(settings.heart("shadow"), followed.report):
            return await shadow_replay.run()

    echo(
        f"shadow {plan.name!r} follows {', '.join(plan.stages)} into {plan.namespace_in(settings.namespace)}*", err=True
    )
    show_manifest(asyncio.run(until_signal()))


@replay.command()
@click.argument("name")
@with_settings
def promote(settings: Settings, name: str) -> None:
    """Make live decide as a shadow or a replay did: one configuration record per stage, in effect at once."""
    from rollbus.cli.replay.options import find_registry
    from rollbus.streams.replay.kafka.manifest import find_manifest
    from rollbus.streams.replay.kafka.promote import promote as put_into_effect

    require_topics(settings, "replays")
    stream = settings.stream_settings()

    async def find_and_promote() -> list[str]:
        return await put_into_effect(stream, await find_manifest(stream, name), find_registry(None), settings.runs)

    echo(f"in effect from now on: {', '.join(asyncio.run(find_and_promote()))}; set it in the settings file too")


@replay.command()
@click.argument("name")
@with_settings
def load(settings: Settings, name: str) -> None:
    """Write a replay's records into ClickHouse, in the tables of live; its `namespace` is `replay-NAME.NAMESPACE`.

    What a shadow writes meanwhile is loaded the next time. Episodes that were forgotten after the replay are left out.
    """
    from rollbus.cli.commands.streams.forget import delete_listed
    from rollbus.cli.replay.load import load_replay
    from rollbus.streams.replay.kafka.manifest import find_manifest

    require_topics(settings, "replays")
    manifest = asyncio.run(find_manifest(settings.stream_settings(), name))
    with show_progress("loading") as progress:
        rows = asyncio.run(load_replay(settings.sink_settings(), manifest.namespace, progress))
    forgotten = delete_listed(settings)
    echo(f"wrote {format_count(rows, 'row')} of {manifest.namespace}* into ClickHouse")
    if forgotten:
        echo(f"{format_count(forgotten, 'row')} of forgotten episodes deleted again")


@replay.command("list")
@with_settings
def list_(settings: Settings) -> None:
    """List the replays of the namespace."""
    from rollbus.streams.replay.kafka.manifest import read_manifests

    require_topics(settings, "replays")
    stream = settings.stream_settings()
    show_replays(asyncio.run(read_manifests(stream)).values(), stream.namespace)


@replay.command()
@click.argument("name")
@with_settings
def show(settings: Settings, name: str) -> None:
    """Show a replay's manifest: ranges, configurations, digests and counts."""
    from rich.pretty import pprint

    from rollbus.streams.replay.kafka.manifest import known_manifest

    require_topics(settings, "replays")
    pprint(asyncio.run(known_manifest(settings.stream_settings(), name)), max_length=40)


@replay.command()
@click.argument("left")
@click.argument("right")
@with_settings
def compare(settings: Settings, left: str, right: str) -> None:
    """Show what differs between two replays, and why; `live` is what live made of the same range."""
    _compare(settings, left, right)


def _compare(settings: Settings, left: str, right: str) -> None:
    from rollbus.streams.replay.compare.live import compare_replays

    require_topics(settings, "replays")
    show_comparison(asyncio.run(compare_replays(settings.stream_settings(), left, right)), settings.namespace)


@replay.command()
@click.argument("name")
@click.option("--clickhouse/--no-clickhouse", default=True, help="Delete its rows in ClickHouse too.")
@with_settings
def delete(settings: Settings, name: str, clickhouse: bool) -> None:
    """Delete a replay's topics and its rows in ClickHouse; its manifest stays in the log as deleted.

    Repeat the command to finish a deletion that was interrupted.
    """
    from rollbus.schemas.wall_clock import wall_clock_ms
    from rollbus.streams.replay.kafka.lease import working_on
    from rollbus.streams.replay.kafka.manifest import delete_named, find_deletable
    from rollbus.streams.replay.plan.plan import check_name, namespace_of

    check_name(name)
    require_topics(settings, "replays")
    stream = settings.stream_settings()

    async def delete_topics() -> list[str]:
        await find_deletable(stream, name)  # a lease leaves its consumer group behind, even without such a replay
        async with working_on(stream, name):
            return await delete_named(stream, name, now_ms=wall_clock_ms())

    echo(f"deleted replay {name!r}: {format_count(len(asyncio.run(delete_topics())), 'topic')}")
    if clickhouse:
        echo(_delete_rows(settings, namespace_of(name, settings.namespace)))


def _delete_rows(settings: Settings, namespace: str) -> str:
    """Delete a replay's rows in ClickHouse; return a line that says so, or why they stay."""
    from rollbus.consumers.clickhouse.maintain.forget import delete_namespace
    from rollbus.schemas.errors import ServiceError

    try:
        rows = delete_namespace(settings.clickhouse, namespace)
    except ServiceError as error:
        return f"its rows in ClickHouse stay until a replay of this name is loaded: {error}"
    return f"{format_count(rows, 'row')} deleted in ClickHouse"
