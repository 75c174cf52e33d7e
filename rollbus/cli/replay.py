"""`rollbus replay`: the same log under another reward, grouping or curriculum, with the same bytes every time."""

import asyncio
import logging
import signal
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rollbus.cli.groups import Verbs
from rollbus.cli.needs import needs_topic
from rollbus.cli.output import Console
from rollbus.cli.replay_plan import plan_of, registry_for, replay_of
from rollbus.cli.replay_shown import ProgressLine, show_comparison, show_manifest, show_replays
from rollbus.cli.root import SettingsFile, with_settings
from rollbus.schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbus.schemas.replays import ReplayManifest
    from rollbus.settings import Settings

OPTIONS = (
    click.option("--from", "start", metavar="BOUND", help="Begin: earliest, a time, '2h ago', tick:N, offsets."),
    click.option("--to", "end", metavar="BOUND", default="latest", show_default=True, help="Where to end."),
    click.option("--stage", "stages", multiple=True, help="Only this stage, from its recorded input; repeatable."),
    click.option("--reward", metavar="F", help="Another reward: YAML, a registered name, or file.py:function."),
    click.option("--grouping", metavar="F", help="Another grouping: YAML, or changes such as group_size=4."),
    click.option("--curriculum", metavar="F", help="Another curriculum: YAML, a mode, or changes."),
    click.option(
        "--rewards",
        type=click.Choice(["recorded", "end"]),
        default="recorded",
        show_default=True,
        help="Feedback counts when it came, or every episode has what stands at the range's end.",
    ),
    click.option("--score-anew", is_flag=True, help="Ask reward functions again, judges too."),
    click.option("--as", "name", metavar="NAME", help="Its name; its topics stand in `replay-NAME.`."),
    click.option("--allow-missing", is_flag=True, help="Go on without what retention has deleted."),
    click.option("--dry-run", is_flag=True, help="Write nothing; show digests and counts."),
    click.option(
        "--processes",
        type=click.IntRange(min=1),
        help="Processes that read and decide the first stage's partitions; by default one per core where it pays.",
    ),
    click.option("--diff", type=click.Choice(["live"]), help="Compare with what live made of the same range."),
)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with what one replay takes."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@click.group(cls=Verbs, invoke_without_command=True)
@options
@click.pass_context
def replay(ctx: click.Context, /, **chosen: Any) -> None:
    """Decide a range of the log again: another reward, grouping or curriculum, and the same bytes every time.

    `rollbus replay --from '2h ago' --reward fixed.yaml --as fixed` writes into topics of its own, `replay-fixed.`; live
    topics are only read, agents are never called, and a judge only with --score-anew.
    """
    given = _given(ctx)
    if ctx.invoked_subcommand is not None:
        if given:
            stand = "stands" if len(given) == 1 else "stand"
            raise click.UsageError(
                f"{', '.join(given)} {stand} before {ctx.invoked_subcommand}, which would not see it; write it behind"
            )
        return
    if not given:
        click.echo(ctx.get_help())
        return
    _refuse_no_start(chosen["start"])
    source: SettingsFile = ctx.obj
    _run(source.load(), **chosen)


def _given(ctx: click.Context) -> list[str]:
    """Return the options that the user wrote."""
    unsaid = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    return [
        option.opts[0]
        for option in ctx.command.params
        if option.name and ctx.get_parameter_source(option.name) not in unsaid
    ]


def _refuse_no_start(start: str | None) -> None:
    if start is None:
        raise click.UsageError("say where to begin: --from earliest, a time, '2h ago', tick:N or offsets")


@replay.command()
@options
@with_settings
def run(settings: "Settings", **chosen: Any) -> None:
    """Replay a range; the same as `rollbus replay --from …`."""
    _refuse_no_start(chosen["start"])
    _run(settings, **chosen)


def _run(settings: "Settings", *, dry_run: bool, diff: str | None, processes: int | None, **chosen: Any) -> None:
    from rollbus.streams.process import prepare_process

    if diff and dry_run:
        raise ConfigurationError("--diff live compares what stands in topics; leave --dry-run out")
    plan = plan_of(settings, dry_run=dry_run, **chosen)
    console = Console(stderr=True)
    prepare_process()
    _count_dead_letters_only()
    try:
        with ProgressLine(console) as line:
            found = replay_of(settings, plan, chosen["reward"], watch=line.watch(), processes=processes)
            manifest = asyncio.run(found.run(dry_run=dry_run))
    except KeyboardInterrupt:
        if not dry_run:
            console.print(
                f"replay {plan.name!r} counts for nothing as it is; the same command goes on where it was if --from "
                "and --to still mean the same range (`latest` on a log that grows does not), and else begins again"
            )
        raise
    show_manifest(manifest, dry_run=dry_run, drops=found.drops)
    console.print(f"{line.records:,} records in {line.seconds:.1f} s; at most {found.open_rows:,} rows were open")
    if diff:
        _compare(settings, "live", manifest.name)


def _count_dead_letters_only() -> None:
    """Log no line for each, for the length of the command: live has said so before, and the table counts them."""
    letters = logging.getLogger("rollbus.streams.processing")
    click.get_current_context().call_on_close(partial(letters.setLevel, letters.level))
    letters.setLevel(logging.ERROR)


@replay.command()
@click.option("--from", "start", metavar="BOUND", default="latest", show_default=True, help="Where to begin.")
@click.option("--reward", metavar="F", help="Another reward: YAML, a registered name, or file.py:function.")
@click.option("--grouping", metavar="F", help="Another grouping: YAML, or changes such as group_size=4.")
@click.option("--curriculum", metavar="F", help="Another curriculum: YAML, a mode, or changes.")
@click.option("--score-anew", is_flag=True, help="Ask reward functions again, judges too.")
@click.option("--as", "name", metavar="NAME", required=True, help="Its name; its topics stand in `replay-NAME.`.")
@with_settings
def shadow(settings: "Settings", **chosen: Any) -> None:
    """Follow the live topics with another reward, grouping or curriculum and write beside, until SIGTERM or Ctrl-C.

    Started again it goes on. `rollbus replay promote NAME` makes live do the same.
    """
    from rollbus.cli.root import log_to_stderr
    from rollbus.streams.process import prepare_process

    first = "scoring" if chosen["reward"] or chosen["score_anew"] else "grouping"
    stages = ("scoring",) * (first == "scoring") + ("grouping", "curriculum")
    more: dict[str, Any] = {"end": "latest", "stages": stages, "rewards": "recorded"}
    plan = plan_of(settings, **chosen, **more, allow_missing=False, dry_run=False)
    needs_topic(settings, "replays")
    log_to_stderr()
    prepare_process()

    async def until_signal() -> "ReplayManifest":
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        return await replay_of(settings, plan, chosen["reward"], follow=stop).run()

    click.echo(f"shadow {plan.name!r} follows {', '.join(plan.stages)} into {plan.namespace}*", err=True)
    show_manifest(asyncio.run(until_signal()))


@replay.command()
@click.argument("name")
@with_settings
def promote(settings: "Settings", name: str) -> None:
    """Make live do what a shadow or a replay did otherwise: one configuration record per stage, in effect at once."""
    from rollbus.streams.replay.manifest_kafka import find_manifest
    from rollbus.streams.replay.promote_kafka import promote as put_into_effect

    needs_topic(settings, "replays")
    stream = settings.stream_settings()

    async def run_it() -> list[str]:
        return await put_into_effect(stream, await find_manifest(stream, name), registry_for(None), settings.runs)

    click.echo(f"in effect from now on: {', '.join(asyncio.run(run_it()))}; set it in the settings file too")


@replay.command()
@click.argument("name")
@with_settings
def load(settings: "Settings", name: str) -> None:
    """Write a replay's records into ClickHouse, beside live's: its `namespace` is `replay-NAME.`.

    What a shadow writes meanwhile is for the next time. Who was forgotten since the replay was made is left out.
    """
    from rich.progress import BarColumn, Progress, TextColumn

    from rollbus.cli.forget import delete_listed
    from rollbus.cli.replay_load import load_replay
    from rollbus.streams.replay.manifest_kafka import find_manifest

    needs_topic(settings, "replays")
    manifest = asyncio.run(find_manifest(settings.stream_settings(), name))
    columns = (TextColumn("loading"), BarColumn(), TextColumn("{task.completed:,.0f} of {task.total:,.0f} offsets"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=0)
        loading = load_replay(
            settings.sink_settings(),
            manifest.namespace,
            lambda done, of: bar.update(task, completed=done, total=of),
        )
        rows = asyncio.run(loading)
    forgotten = delete_listed(settings)
    click.echo(f"wrote {rows:,} rows of {manifest.namespace}* into ClickHouse")
    if forgotten:
        click.echo(f"{forgotten:,} rows of forgotten episodes deleted again")


@replay.command("list")
@with_settings
def list_(settings: "Settings") -> None:
    """List the replays of the namespace."""
    from rollbus.streams.replay.manifest_kafka import read_manifests

    needs_topic(settings, "replays")
    stream = settings.stream_settings()
    show_replays(asyncio.run(read_manifests(stream)).values(), stream.namespace)


@replay.command()
@click.argument("name")
@with_settings
def show(settings: "Settings", name: str) -> None:
    """Show a replay's manifest: ranges, configurations, digests and counts."""
    from rich.pretty import pprint

    from rollbus.streams.replay.manifest_kafka import known_manifest

    needs_topic(settings, "replays")
    pprint(asyncio.run(known_manifest(settings.stream_settings(), name)), max_length=40)


@replay.command()
@click.argument("one")
@click.argument("other")
@with_settings
def compare(settings: "Settings", one: str, other: str) -> None:
    """Say what came out otherwise in two replays, and why; `live` is what live made of the same range."""
    _compare(settings, one, other)


def _compare(settings: "Settings", one: str, other: str) -> None:
    from rollbus.streams.replay.compare_kafka import compare_replays

    needs_topic(settings, "replays")
    show_comparison(asyncio.run(compare_replays(settings.stream_settings(), one, other)), settings.namespace)


@replay.command()
@click.argument("name")
@click.option("--clickhouse/--no-clickhouse", default=True, show_default=True, help="Delete its rows there too.")
@with_settings
def delete(settings: "Settings", name: str, clickhouse: bool) -> None:
    """Delete a replay's topics and its rows in ClickHouse; its manifest stays in the log as deleted.

    Given again it finishes a deletion that was cut short.
    """
    from rollbus.streams.replay.lease_kafka import working_on
    from rollbus.streams.replay.namespace_kafka import delete_named, find_deletable
    from rollbus.streams.replay.plan import check_name, namespace_of
    from rollbus.streams.replay.run_kafka import wall_clock_ms

    check_name(name)
    needs_topic(settings, "replays")
    stream = settings.stream_settings()

    async def run_it() -> list[str]:
        await find_deletable(stream, name)  # a lease leaves its group behind, also where there is no such replay
        async with working_on(stream, name):
            return await delete_named(stream, name, now_ms=wall_clock_ms())

    click.echo(f"deleted replay {name!r}: {len(asyncio.run(run_it()))} topics")
    if clickhouse:
        click.echo(_delete_rows(settings, namespace_of(name)))


def _delete_rows(settings: "Settings", namespace: str) -> str:
    """Delete a replay's rows in ClickHouse, and say so, or that they stay."""
    from rollbus.consumers.clickhouse.namespaces import delete_namespace
    from rollbus.schemas.errors import ServiceError

    try:
        rows = delete_namespace(settings.clickhouse, namespace)
    except ServiceError as error:
        return f"rows that were loaded into ClickHouse stay, until a replay of this name is loaded: {error}"
    return f"{rows:,} rows deleted in ClickHouse"
