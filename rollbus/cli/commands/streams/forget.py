"""`rollbus forget`: exclude a person's episodes from training, and delete their rows."""

import asyncio
import shlex
from typing import TYPE_CHECKING

import click

from rollbus.cli.groups import Verb
from rollbus.cli.places import find_places
from rollbus.cli.required_topics import require_topics
from rollbus.cli.root import Settings, with_settings
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.wall_clock import wall_clock_ms
from rollbus.terminal.output import Console, OutputTable, format_count, format_time
from rollbus.terminal.progress import show_progress

if TYPE_CHECKING:
    from rollbus.streams.operate.forget import RootedEpisode


@click.command(cls=Verb)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    help="Forget episodes with this label; of several, with all.",
)
@click.option("--episode", "episodes", multiple=True, metavar="ID", help="Forget the episode with this id; repeatable.")
@click.option("--reason", default="forgotten on request", help="Keep this reason in the log.")
@click.option(
    "--again",
    is_flag=True,
    help="Delete what is left of all that is already on the list, for example after a slow sink.",
)
@click.option("--clickhouse/--no-clickhouse", default=True, help="Search and delete in ClickHouse too.")
@click.option("--dry-run", is_flag=True, help="Only show what would be forgotten, and each place.")
@with_settings
def forget(
    settings: Settings,
    labels: tuple[str, ...],
    episodes: tuple[str, ...],
    reason: str,
    again: bool,
    clickhouse: bool,
    dry_run: bool,
) -> None:
    """Forget episodes by label: no stage, trainer, replay or export uses them from now on.

    Stages drop their open state, the trainer refuses them, their rows in ClickHouse are deleted, and the archive of
    `archive: url:` is written again without them. The command prints
    each place where their texts, ids, log-probs or labels may be: removed there, expiring by a time, or not removable,
    and why. The weights still know them: it lists the steps that used them.
    """
    from rollbus.consumers.clickhouse.sink.status import wait_for_sink
    from rollbus.schemas.ids import trajectory_id
    from rollbus.streams.operate.forget import exclusions
    from rollbus.streams.operate.forget_on_log import steps_that_used, write_exclusions

    if not (labels or episodes or again):
        raise ConfigurationError("give what to forget: --label user=ann, or --episode ID")
    parsed_labels = _parse_labels(labels)
    require_topics(settings, "exclusions")
    stream, console = settings.stream_settings(), Console()
    matches = _find_episodes(settings, parsed_labels, episodes, clickhouse) if labels or episodes else []
    if not (matches or again):
        named = " and ".join(f"{name}={value}" for name, value in parsed_labels.items())
        places = "in the log or in ClickHouse" if clickhouse else "in the log"
        shown_label = shlex.quote(f"label={min(parsed_labels)}")
        raise ConfigurationError(
            f"no episode has the label {named}, {places}: nothing is forgotten. Labels are compared letter by letter; "
            f"`rollbus sql run reward-by-label --param {shown_label}` shows the values that there are"
        )
    ids = frozenset(trajectory_id(match.episode_id) for match in matches)
    steps = asyncio.run(steps_that_used(stream, ids))
    conversations = format_count(len({match.root_episode_id for match in matches}), "conversation")
    console.print(f"{format_count(len(matches), 'episode')} in {conversations}")
    now_ms = wall_clock_ms()
    if dry_run:
        for match in matches[:20]:
            console.print(f"  {match.episode_id}")
        _print_places(settings, console, "their rows" if clickhouse else None, "their records", len(steps), now_ms)
        console.print("nothing is changed: --dry-run; the table says what would become of it")
    else:
        new_exclusions = asyncio.run(write_exclusions(stream, exclusions(matches, reason=reason, now_ms=now_ms)))
        console.print(
            f"{new_exclusions} are on the list of exclusions from now on; "
            f"{len(matches) - new_exclusions} were already on it"
        )
        behind = asyncio.run(wait_for_sink(settings.sink_settings())) if clickhouse else 0
        rows = format_count(delete_listed(settings), "row") if clickhouse else None
        archived = format_count(forget_archived(settings, now_ms), "record")
        _print_places(settings, console, rows, archived, len(steps), now_ms)
        if behind:
            records = format_count(behind, "record")
            console.print(f"the sink has not written {records} of the log: once it has, give `rollbus forget --again`")
    if steps:
        table = OutputTable("run", "step", "version", "their trajectories", title="steps that used them")
        for (run, step), record in sorted(steps.items()):
            count = sum(1 for trajectory in record.trained if trajectory.trajectory_id in ids)
            table.add_row(run, str(step), str(record.policy_version), str(count))
        console.print(table)
        console.print(
            "the weights still know them; `rollbus policy rollback` goes back to a version before these steps"
        )


def _find_episodes(
    settings: Settings, wanted_labels: dict[str, str], episodes: tuple[str, ...], clickhouse: bool
) -> "list[RootedEpisode]":
    from rich.progress import Progress, TextColumn

    from rollbus.consumers.clickhouse.maintain.forget import find_attempts, find_episodes
    from rollbus.streams.operate.forget import RootedEpisode, Search
    from rollbus.streams.operate.forget_on_log import search_log

    search = Search(wanted_labels, frozenset(episodes))
    column = TextColumn("reading the log: {task.completed:,.0f} records")
    with Progress(column, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        asyncio.run(search_log(settings.stream_settings(), search, lambda count: bar.advance(task, count)))
    matches = set(search.matching_episodes())
    if clickhouse:  # it keeps episodes longer than the log
        stored = find_episodes(settings.clickhouse, settings.namespace, wanted_labels, episodes)
        matches |= {RootedEpisode(episode, root) for episode, root in stored.items()}
    matches |= {RootedEpisode(episode, episode) for episode in set(episodes) - {match.episode_id for match in matches}}
    ids = [match.episode_id for match in matches]
    matches.update(search.attempts_at(ids))  # they repeat what the person said
    if clickhouse:
        attempts = find_attempts(settings.clickhouse, settings.namespace, ids)
        matches |= {RootedEpisode(episode, root) for episode, root in attempts.items()}
    return sorted(matches)


def delete_listed(settings: Settings) -> int:
    """Delete the rows of everything on the list; a late sink may have written rows of earlier requests."""
    from rollbus.consumers.clickhouse.maintain.forget import delete_rows
    from rollbus.streams.replay.kafka.live_topics import read_exclusions

    listed, _ = asyncio.run(read_exclusions(settings.stream_settings()))
    return delete_rows(settings.clickhouse, listed)


def forget_archived(settings: Settings, now_ms: int) -> int:
    """Write the archive again without everything on the list; return how many records went."""
    if settings.archive.url is None:
        return 0
    from rollbus import __version__
    from rollbus.archive.archive import open_archive
    from rollbus.archive.forget import forget_in_archive
    from rollbus.streams.replay.kafka.live_topics import read_exclusions

    listed, _ = asyncio.run(read_exclusions(settings.stream_settings()))
    archive = open_archive(settings.archive.url, may_be_new=True)
    with show_progress("looking through the archive") as progress:
        return forget_in_archive(archive, listed, now_ms=now_ms, version=__version__, progress=progress)


def _print_places(
    settings: Settings, console: Console, rows: str | None, archived: str, trained_steps: int, now_ms: int
) -> None:
    """Print what becomes of the data in each place where it may rest."""
    from rollbus.hosted_stages import all_stages
    from rollbus.schemas.namespaces import RESTORED
    from rollbus.streams.kafka.names import changelog_topic
    from rollbus.streams.kafka.topics_on_broker import topics_on_broker
    from rollbus.streams.replay.kafka.manifest import read_manifests
    from rollbus.streams.stages.alias import AliasStage

    stream, horizon_ms = settings.stream_settings(), settings.assembly.late_horizon_ms
    restored_topics = [(topic, RESTORED.match(topic)) for topic in asyncio.run(topics_on_broker(stream))]
    restored = {
        match[0] + stream.namespace
        for name, match in restored_topics
        if match and name.startswith(match[0] + stream.namespace)
    }
    places = find_places(
        namespace=stream.namespace,
        retention_hours=settings.worker.retention_hours,
        changelogs={
            changelog_topic(stream.namespace, stage.name): horizon_ms if stage.name == AliasStage.name else 0
            for stage in all_stages(settings)
        },
        replays=sorted(asyncio.run(read_manifests(stream))),
        rows=rows,
        trained_steps=trained_steps,
        now_ms=now_ms,
        archived=(settings.archive.url, archived) if settings.archive.url else None,
        restored=sorted(restored),
    )
    table = OutputTable("place", "holds", "what becomes of it")
    for place in places:
        by = "" if place.by_ms is None else f" by {format_time(place.by_ms)} UTC"
        table.add_row(place.name, place.holds, f"{place.outcome}{by}: {place.why}")
    console.print(table)


def _parse_labels(pairs: tuple[str, ...]) -> dict[str, str]:
    values: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not (name and separator):
            raise ConfigurationError(f"--label {pair!r} is not like user=ann")
        if values.setdefault(name, value) != value:
            raise ConfigurationError(
                f"--label {name}={values[name]} and --label {pair}: no episode has both, since several labels mean the "
                "episodes that have all of them; give the command once for each"
            )
    return values
