"""A trajectory builder whose epochs are production traffic: episodes of the log, played into the run as they were.

    episode-events of the agents' namespace ─▶ whole root episodes of a time range ─▶ the run's own episode-events

Tokens, log-probs, tools and rewards stay what they were; episode, group and labels are the run's. So the run's stages
target, filter, score and group them as any traffic. Attempts at one example are one group; what came once is held
against what its task earned before.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import batched
from typing import Any

from rollbus.nemo import troubles
from rollbus.nemo.bus.kafka import read_since
from rollbus.nemo.bus.publish_trajectories import TASK, labels_of
from rollbus.nemo.bus.run_view import ExampleAttempt, group_id_of
from rollbus.nemo.components import LogTrajectoryBuilderConfig
from rollbus.nemo.evaluation import Play
from rollbus.nemo.production.telemetry import production_settings
from rollbus.nemo.runs.run import current_run
from rollbus.nemo.trajectory_builder import BusTrajectoryBuilder
from rollbus.schemas.ids import join_parts
from rollbus.schemas.records.events import (
    EpisodeEnded,
    EpisodeStarted,
    Event,
    Excluded,
    TurnRecorded,
    WriterClosed,
)
from rollbus.schemas.topics import EPISODE_EVENTS, EXCLUSIONS
from rollbus.streams.stages.assembly.open_episode import OpenEpisode
from rollbus.streams.stages.assembly.rows import KINDS, EventRow
from rollbus.trainer.ledger.log import Publication

logger = logging.getLogger(__name__)

LAST = (EpisodeEnded, WriterClosed)
"""Written after everything else of an episode, later rewards included: then it is complete at once."""


@dataclass(frozen=True, slots=True)
class LoggedEpisode:
    """A root episode that is whole."""

    start: EpisodeStarted
    events: tuple[Event, ...]
    """All of them, in the order of the log."""


class BusLogBuilder(BusTrajectoryBuilder):
    """Plays the log; a held-out dataset is run through the workflow, as by the dataset's builder."""

    config: LogTrajectoryBuilderConfig  # type: ignore[assignment]  # the fields of a dataset are not asked for

    def __init__(self, trajectory_builder_config: LogTrajectoryBuilderConfig) -> None:
        super().__init__(trajectory_builder_config)  # type: ignore[arg-type]
        self.read: Callable[[LogTrajectoryBuilderConfig], Awaitable[Sequence[Event]]] = read_events
        """Where the events come from."""

    @property
    def num_generations(self) -> int:
        """Return how many attempts at one example are compared at most."""
        return self.config.group_size

    def new_plays(self, epoch: int, run_id: str) -> list[Play]:
        """Return one play: every episode that is chosen, once."""
        return [Play(epoch, 0, self.num_generations)]

    async def play(self, play: Play) -> None:
        """Copy the chosen episodes into the run."""
        events, run = await self.read(self.config), current_run("rollbus_log_builder")
        episodes, left_out = choose_episodes(events, self.config)
        logger.info("Playing %d episodes of the log for run_id: %s", len(episodes), run.run_id)
        if left_out:
            logger.warning("left out of the log: %s", troubles.describe_counts(dict(sorted(left_out.items()))))
        base, publications = run.plan.trained or ("", run.plan.model), list[Publication]()
        for attempt, episode, group in attempts_at(episodes, run.run_id, play.epoch, self.config.group_size):
            run.tally.add(episode.events)
            play.trajectory_ids.append(attempt.trajectory_id)
            copies = copied(episode, attempt, group, base)
            publications += (Publication(EPISODE_EVENTS, attempt.episode_id, event) for event in copies)
        await run.log.publish(publications)

    async def end_play(self, play: Play, output: object, meta: Any) -> None:
        """Leave the episodes as the log has them: rewarded and ended."""


def choose_episodes(
    events: Iterable[Event], config: LogTrajectoryBuilderConfig
) -> tuple[list[LoggedEpisode], Counter[str]]:
    """Return the root episodes of the range that are whole, and how many others there are, by reason."""
    by_episode: dict[str, dict[str, Event]] = defaultdict(dict)
    for event in events:
        by_episode[event.episode_id].setdefault(event.event_id, event)
    episodes, left_out = [], Counter[str]()
    for events_by_id in by_episode.values():
        episode_events = tuple(events_by_id.values())
        start = next((event for event in episode_events if isinstance(event, EpisodeStarted)), None)
        if start is None or not _is_chosen(start, config):
            continue
        if (reason := _incomplete(start, episode_events)) is not None:
            left_out[reason] += 1
        else:
            episodes.append(LoggedEpisode(start, episode_events))
    return episodes, left_out


def attempts_at(
    episodes: Sequence[LoggedEpisode], run_id: str, epoch: int, group_size: int
) -> Iterator[tuple[ExampleAttempt, LoggedEpisode, tuple[str, int]]]:
    """Yield each episode with its attempt in the run, and its group's id and size: attempts at one example share it."""
    by_example: dict[tuple[str, str], list[LoggedEpisode]] = defaultdict(list)
    for episode in episodes:
        start = episode.start
        by_example[start.task, start.example_id or start.episode_id].append(episode)
    for (task, example), attempts in by_example.items():
        for part, members in enumerate(batched(attempts, group_size)):
            group_id = group_id_of(run_id, epoch, join_parts(task, example, part))
            for generation, episode in enumerate(members):
                attempt = ExampleAttempt(run_id, epoch, episode.start.episode_id, generation)
                yield attempt, episode, (group_id, len(members))


def copied(
    episode: LoggedEpisode, attempt: ExampleAttempt, group: tuple[str, int], base: tuple[str, str]
) -> Iterator[Event]:
    """Yield the events of an episode as the run's; turns of the base model are of version 0 of the trained one."""
    base_name, name = base
    for event in sorted(episode.events, key=lambda event: isinstance(event, LAST)):
        ours = replace(event, episode_id=attempt.episode_id, root_episode_id=attempt.episode_id)
        if isinstance(ours, EpisodeStarted):
            labels = {**ours.labels, "task": ours.task, **labels_of(attempt)}
            example = join_parts(ours.task, ours.example_id) if ours.example_id else ours.episode_id
            group_id, size = group
            ours = replace(ours, task=TASK, example_id=example, group_id=group_id, group_size=size, labels=labels)
        elif isinstance(ours, TurnRecorded) and ours.policy_version is None and ours.model == base_name:
            ours = replace(ours, model=f"{name}@0", policy_version=0)
        yield ours


def _is_chosen(start: EpisodeStarted, config: LogTrajectoryBuilderConfig) -> bool:
    """Say whether the configuration asks for an episode."""
    began_ms = start.occurred_at_ms
    return (
        (config.since is None or began_ms >= _ms(config.since))
        and (config.until is None or began_ms < _ms(config.until))
        and (not config.tasks or start.task in config.tasks)
        and all(start.labels.get(name) == value for name, value in config.labels.items())
    )


def _incomplete(start: EpisodeStarted, events: Sequence[Event]) -> str | None:
    """Return what keeps an episode from being played; None if nothing does."""
    if start.parent_episode_id is not None:
        return "part of another episode"
    if any(isinstance(event, Excluded) for event in events):
        return "excluded"
    episode = OpenEpisode()
    for event in events:
        if (kind := KINDS.get(type(event))) is not None:
            row = EventRow(kind, event.occurred_at_ms, b"")
            episode.add(event.event_id, row, event.writer_id, event.sequence, event)
    if episode.ended_by is None:
        return "not ended"
    return None if episode.complete() else "events are missing"


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


async def read_events(config: LogTrajectoryBuilderConfig) -> list[Event]:
    """Read the events of the agents' namespace, from the beginning of the range to the end of the log, and who is
    forgotten.
    """
    settings = production_settings(config.settings_file)
    since_ms = None if config.since is None else _ms(config.since)
    records = await read_since(settings.kafka, EPISODE_EVENTS.full_name(settings.namespace), since_ms)
    records += await read_since(settings.kafka, EXCLUSIONS.full_name(settings.namespace), None)
    return [record for record in records if isinstance(record, Event)]
