"""`rollbus forget`: a person's episodes are not trained on any more, and their rows are deleted."""

import asyncio
import time
from typing import TYPE_CHECKING

import click

from rollbus.cli.needs import needs_topic
from rollbus.cli.output import Console, Table
from rollbus.cli.root import with_settings
from rollbus.schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbus.settings import Settings
    from rollbus.streams.forget import Episode


@click.command()
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Episodes with this label; repeatable.")
@click.option("--episode", "episodes", multiple=True, metavar="ID", help="An episode by its id; repeatable.")
@click.option("--reason", default="forgotten on request", show_default=True, help="It stands in the log.")
@click.option("--again", is_flag=True, help="Delete the rows of all that is on the list already, as after a slow sink.")
@click.option("--clickhouse/--no-clickhouse", default=True, show_default=True, help="Search and delete there too.")
@click.option("--dry-run", is_flag=True, help="Only say what would be forgotten.")
@with_settings
def forget(
    settings: "Settings",
    labels: tuple[str, ...],
    episodes: tuple[str, ...],
    reason: str,
    again: bool,
    clickhouse: bool,
    dry_run: bool,
) -> None:
    """Forget episodes by label: no stage, trainer, replay or export uses them from now on.

    Open state is dropped, open groups lose them, the trainer refuses them, and their rows in ClickHouse are deleted.
    Kafka's bytes go with retention. Weights are not unlearned: the steps that used them are listed.
    """
    from rollbus.schemas.ids import trajectory_id
    from rollbus.streams.forget import exclusions
    from rollbus.streams.forget_kafka import steps_that_used, write_exclusions

    if not (labels or episodes or again):
        raise ConfigurationError("say whom to forget: --label user=ann, or --episode ID")
    wanted = _labels(labels)
    needs_topic(settings, "exclusions")
    stream, console = settings.stream_settings(), Console()
    found = _find(settings, wanted, episodes, clickhouse) if labels or episodes else []
    ids = frozenset(trajectory_id(each.episode_id) for each in found)
    steps = asyncio.run(steps_that_used(stream, ids))
    console.print(f"{len(found)} episodes in {len({each.root_episode_id for each in found})} conversations")
    if dry_run:
        for each in found[:20]:
            console.print(f"  {each.episode_id}")
        console.print("nothing is changed: --dry-run")
    else:
        now_ms = int(time.time() * 1000)
        written = asyncio.run(write_exclusions(stream, exclusions(found, reason=reason, now_ms=now_ms)))
        console.print(f"{written} are on the list of exclusions from now on; {len(found) - written} were already")
        if clickhouse:
            console.print(f"{delete_listed(settings)} rows deleted in ClickHouse")
    _say_what_stays(settings, console)
    if steps:
        table = Table("run", "step", "version", "trajectories of theirs", title="trained with them")
        for (run, step), record in sorted(steps.items()):
            count = sum(1 for one in record.trained if one.trajectory_id in ids)
            table.add_row(run, str(step), str(record.policy_version), str(count))
        console.print(table)
        console.print("weights are not unlearned; `rollbus policy rollback` goes back before them")


def _find(settings: "Settings", wanted: dict[str, str], episodes: tuple[str, ...], clickhouse: bool) -> "list[Episode]":
    from rich.progress import Progress, TextColumn

    from rollbus.consumers.clickhouse.forget import find_attempts, find_episodes
    from rollbus.streams.forget import Episode, Search
    from rollbus.streams.forget_kafka import search_log

    search = Search(wanted, frozenset(episodes))
    column = TextColumn("reading the log: {task.completed:,.0f} records")
    with Progress(column, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        asyncio.run(search_log(settings.stream_settings(), search, lambda count: bar.advance(task, count)))
    found = set(search.found())
    if clickhouse:  # it remembers longer than the log
        stored = find_episodes(settings.clickhouse, settings.namespace, wanted, episodes)
        found |= {Episode(episode, root) for episode, root in stored.items()}
    found |= {Episode(one, one) for one in set(episodes) - {each.episode_id for each in found}}
    ids = [each.episode_id for each in found]
    found.update(search.attempts_at(ids))  # they say again what the person said first
    if clickhouse:
        attempts = find_attempts(settings.clickhouse, settings.namespace, ids)
        found |= {Episode(episode, root) for episode, root in attempts.items()}
    return sorted(found)


def delete_listed(settings: "Settings") -> int:
    """Delete the rows of everything on the list: those of earlier requests too, which a late sink may have brought."""
    from rollbus.consumers.clickhouse.forget import delete_rows
    from rollbus.streams.replay.recorded_kafka import read_exclusions

    listed, _ = asyncio.run(read_exclusions(settings.stream_settings()))
    return delete_rows(settings.clickhouse, listed)


def _say_what_stays(settings: "Settings", console: Console) -> None:
    from rollbus.streams.replay.manifest_kafka import read_manifests

    hours = settings.worker.retention_hours
    console.print(f"Kafka's own bytes go with retention, after {hours} h; dead letters are kept as they came")
    replays = asyncio.run(read_manifests(settings.stream_settings()))
    if replays:
        console.print(f"replays made before keep their copies: rollbus replay delete {' | '.join(sorted(replays))}")


def _labels(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not (name and separator):
            raise ConfigurationError(f"--label {pair!r} is not like user=ann")
        found[name] = value
    return found
