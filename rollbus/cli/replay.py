"""`rollbus replay`: the same log under another reward, grouping or curriculum, with the same bytes every time."""

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from rollbus import __version__
from rollbus.cli.output import Console, Table
from rollbus.cli.root import SettingsFile, with_settings
from rollbus.cli.stages import judge_endpoint
from rollbus.schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbus.schemas.replays import ReplayManifest, ReplayRange
    from rollbus.settings import Settings
    from rollbus.streams.replay.compare import Comparison
    from rollbus.streams.replay.passage_kafka import Watch
    from rollbus.streams.replay.plan import ReplayPlan
    from rollbus.streams.replay.run_kafka import Replay

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
    click.option("--diff", type=click.Choice(["live"]), help="Compare with what live made of the same range."),
)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with what one replay takes."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@click.group(invoke_without_command=True)
@options
@click.pass_context
def replay(ctx: click.Context, /, **chosen: Any) -> None:
    """Decide a range of the log again: another reward, grouping or curriculum, and the same bytes every time.

    `rollbus replay --from '2h ago' --reward fixed.yaml --as fixed` writes into topics of its own, `replay-fixed.`; live
    topics are only read, agents are never called, and a judge only with --score-anew.
    """
    if ctx.invoked_subcommand is not None:
        return
    if chosen["start"] is None:
        click.echo(ctx.get_help())
        return
    source: SettingsFile = ctx.obj
    _run(source.load(), **chosen)


@replay.command()
@options
@with_settings
def run(settings: "Settings", **chosen: Any) -> None:
    """Replay a range; the same as `rollbus replay --from …`."""
    if chosen["start"] is None:
        raise click.UsageError("say where to begin: --from earliest, a time, '2h ago', tick:N or offsets")
    _run(settings, **chosen)


def replay_of(settings: "Settings", plan: "ReplayPlan", reward: str | None, **options: Any) -> "Replay":
    """Return an attempt at a plan, with the reward functions and the judge's model that the settings name."""
    from rollbus.streams.replay.run_kafka import Replay

    ask = judge_endpoint(settings)
    registry = registry_for(reward)
    return Replay(settings.stream_settings(), plan, registry, ask=ask, version=__version__, **options)


def _run(settings: "Settings", *, dry_run: bool, diff: str | None, **chosen: Any) -> None:
    plan = plan_of(settings, dry_run=dry_run, **chosen)
    console = Console(stderr=True)
    with ProgressLine(console) as line:
        found = replay_of(settings, plan, chosen["reward"], watch=line.watch())
        manifest = asyncio.run(found.run(dry_run=dry_run))
    show_manifest(manifest, dry_run=dry_run)
    if diff and dry_run:
        raise ConfigurationError("--diff live compares what stands in topics; leave --dry-run out")
    console.print(f"{line.records:,} records in {line.seconds:.1f} s; at most {found.open_rows:,} rows were open")
    if diff:
        _compare(settings, "live", manifest.name)


def registry_for(reward: str | None) -> Any:
    """Return the reward functions of a replay."""
    from rollbus.cli.replay_options import registry_of

    return registry_of(reward)


def plan_of(
    settings: "Settings",
    *,
    start: str,
    end: str,
    stages: tuple[str, ...],
    reward: str | None,
    grouping: str | None,
    curriculum: str | None,
    rewards: Any,
    score_anew: bool,
    name: str | None,
    allow_missing: bool,
    dry_run: bool,
) -> "ReplayPlan":
    """Return the plan that the options say; raises ConfigurationError."""
    from rollbus.cli.replay_options import curriculum_of, grouping_of, scoring_of
    from rollbus.streams.replay.plan import ReplayPlan, chain_of, check_name
    from rollbus.streams.replay.range import parse_bound

    if name is None and not dry_run:
        raise ConfigurationError("give the replay a name with --as, or look first with --dry-run")
    check_name(name or "dry-run")
    now_ms = int(time.time() * 1000)
    base = settings.runs[0]
    return ReplayPlan(
        name=name or "dry-run",
        start=parse_bound(start, now_ms=now_ms),
        end=parse_bound(end, now_ms=now_ms),
        stages=chain_of(stages),
        assembly=settings.assembly,
        scoring=settings.scoring,
        runs=settings.runs,
        new_scoring=scoring_of(reward, registry_for(None))[0] if reward else None,
        new_grouping=grouping_of(grouping, base.grouping) if grouping else None,
        new_curriculum=curriculum_of(curriculum, base.curriculum) if curriculum else None,
        rewards=rewards,
        scores="anew" if score_anew else "computed" if reward else "recorded",
        allow_missing=allow_missing,
    )


class ProgressLine:
    """A bar over the range's offsets: throughput, remaining time, and how far stream time has come."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self.records = self.size = 0
        self._start = time.monotonic()
        self.seconds = 0.0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[speed]}"),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("replaying", total=None, speed="")

    def __enter__(self) -> "ProgressLine":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._start
        self._bar.stop()

    def watch(self) -> "Watch":
        """Return what a replay tells."""
        from rollbus.streams.replay.passage_kafka import Watch

        return Watch(begin=self._begin, progress=self._progress, stream_time=self._stream_time)

    def _begin(self, ranges: "tuple[ReplayRange, ...]") -> None:
        self._start = time.monotonic()
        self.records = self.size = 0
        self._bar.update(self._task, completed=0, total=sum(one.to_offset - one.from_offset for one in ranges))

    def _progress(self, offsets: int, records: int, size: int) -> None:
        self.records += records
        self.size += size
        elapsed = max(time.monotonic() - self._start, 1e-3)
        speed = f"{self.records / elapsed:,.0f} records/s  {self.size / elapsed / 1e6:.1f} MB/s"
        self._bar.update(self._task, advance=offsets, speed=speed)

    def _stream_time(self, ms: int) -> None:
        self._bar.update(self._task, description=f"replaying {_time(ms)}")


def show_manifest(manifest: "ReplayManifest", *, dry_run: bool = False) -> None:
    """Print a manifest."""
    console = Console()
    for stage in manifest.missing:
        console.print(f"missing: {stage.topic}[{stage.partition}] {stage.from_offset} … {stage.to_offset - 1}")
    table = Table("stage", "records in", "records out", "dead letters", "digest")
    for one in manifest.digests:
        table.add_row(one.stage, f"{one.records_in:,}", f"{one.records_out:,}", str(one.dead_letters), one.digest)
    console.print(table)
    written = ", ".join(f"{count:,} {topic}" for topic, count in manifest.records.items())
    console.print(f"{'would write' if dry_run else 'wrote'} {written or 'nothing'}")
    if not dry_run:
        console.print(f"replay {manifest.name!r} stands in {manifest.namespace}*, and counts from now on")


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

    first = "scoring" if chosen["reward"] or chosen["score_anew"] else "grouping"
    stages = ("scoring",) * (first == "scoring") + ("grouping", "curriculum")
    more: dict[str, Any] = {"end": "latest", "stages": stages, "rewards": "recorded"}
    plan = plan_of(settings, **chosen, **more, allow_missing=False, dry_run=False)
    log_to_stderr()

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

    stream = settings.stream_settings()

    async def run_it() -> list[str]:
        return await put_into_effect(stream, await find_manifest(stream, name), registry_for(None))

    click.echo(f"in effect from now on: {', '.join(asyncio.run(run_it()))}; set it in the settings file too")


@replay.command()
@click.argument("name")
@with_settings
def load(settings: "Settings", name: str) -> None:
    """Write a replay's records into ClickHouse, beside live's: its `namespace` is `replay-NAME.`."""
    from rollbus.cli.replay_load import load_replay
    from rollbus.streams.replay.manifest_kafka import find_manifest

    manifest = asyncio.run(find_manifest(settings.stream_settings(), name))
    rows = asyncio.run(load_replay(settings.sink_settings(), manifest.namespace))
    click.echo(f"{rows:,} rows of {manifest.namespace}* stand in ClickHouse")


@replay.command("list")
@with_settings
def list_(settings: "Settings") -> None:
    """List the replays of the namespace."""
    from rollbus.streams.replay.manifest_kafka import read_manifests
    from rollbus.streams.replay.plan import CHAIN

    table = Table("name", "state", "stages", "from (stream time, UTC)", "to", "otherwise", "records", "code")
    for one in asyncio.run(read_manifests(settings.stream_settings())).values():
        changed = ", ".join(_changed(one)) or "–"
        span = (_time(one.from_ms), _time(one.to_ms))
        records = f"{sum(one.records.values()):,}" if one.records else "–"
        table.add_row(
            one.name,
            one.state,
            "all" if one.stages == CHAIN else " → ".join(one.stages),
            *span,
            changed,
            records,
            one.code_hash[:8],
        )
    Console().print(table)


@replay.command()
@click.argument("name")
@with_settings
def show(settings: "Settings", name: str) -> None:
    """Show a replay's manifest: ranges, configurations, digests and counts."""
    from rich.pretty import pprint

    from rollbus.streams.replay.manifest_kafka import read_manifests

    manifests = asyncio.run(read_manifests(settings.stream_settings()))
    if name not in manifests:
        raise ConfigurationError(f"no replay {name!r}; there are: {', '.join(sorted(manifests)) or 'none'}")
    pprint(manifests[name], max_length=40)


@replay.command()
@click.argument("one")
@click.argument("other")
@with_settings
def compare(settings: "Settings", one: str, other: str) -> None:
    """Say what came out otherwise in two replays, and why; `live` is what live made of the same range."""
    _compare(settings, one, other)


def _compare(settings: "Settings", one: str, other: str) -> None:
    from rollbus.streams.replay.compare_kafka import compare_replays

    show_comparison(asyncio.run(compare_replays(settings.stream_settings(), one, other)), settings.namespace)


def show_comparison(found: "Comparison", namespace: str) -> None:
    """Print what is alike, what is not, and where SQL goes on."""
    from rollbus.streams.replay.plan import namespace_of

    console = Console()
    alike = ", ".join(f"{count:,} {kind}" for kind, count in found.same.items()) or "nothing"
    console.print(f"{found.one} and {found.other} have alike: {alike}")
    for title, edge in (("different", False), ("cut by the range's edge", True)):
        rows = [each for each in found.differences if each.edge is edge]
        if rows:
            table = Table("what", "how", "why", "count", "examples", title=title, title_justify="left")
            for each in rows:
                table.add_row(each.kind, each.what, each.cause, f"{each.count:,}", "\n".join(each.examples))
            console.print(table)
    if not found.inside:
        console.print("no difference inside the range")
    sides = [namespace if name == "live" else namespace_of(name) for name in (found.one, found.other)]
    ask = f"--param namespace={sides[0]} --param replay={sides[1]}"
    console.print(f"go on in SQL: rollbus sql run live_against_replay {ask}", soft_wrap=True)


@replay.command()
@click.argument("name")
@with_settings
def delete(settings: "Settings", name: str) -> None:
    """Delete a replay's topics; its manifest stays in the log as deleted."""
    from rollbus.streams.replay.manifest_kafka import read_manifests
    from rollbus.streams.replay.namespace_kafka import delete_replay
    from rollbus.streams.replay.run_kafka import wall_clock_ms

    async def run_it() -> list[str]:
        manifests = await read_manifests(stream)
        if name not in manifests:
            raise ConfigurationError(f"no replay {name!r}; there are: {', '.join(sorted(manifests)) or 'none'}")
        return await delete_replay(stream, manifests[name], now_ms=wall_clock_ms())

    stream = settings.stream_settings()
    click.echo(f"deleted replay {name!r}: {len(asyncio.run(run_it()))} topics")


def _changed(manifest: "ReplayManifest") -> list[str]:
    """Return what a replay did otherwise, as its options are called."""
    stages = {override.stage for override in manifest.overrides}
    told = ["reward"] * ("scoring" in stages) + ["grouping or curriculum"] * ("grouping" in stages)
    return told + ["rewards of the end"] * (manifest.rewards == "end") + ["scored anew"] * (manifest.scores == "anew")


def _time(ms: int | None) -> str:
    if not ms:
        return "–" if ms is None else "the beginning"
    with suppress(OverflowError, OSError, ValueError):
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return str(ms)
