"""What a log must come to, worked out from all its events at once: no state, no time, no partitions.

Holds for logs whose groups are explicit, and after so much stream time that nothing waits any more.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from rollbus.schemas.ids import trajectory_id
from rollbus.schemas.records.events import EpisodeEnded, EpisodeStarted, RewardReported, TurnRecorded, WriterClosed


@dataclass
class ExpectedFates:
    """The fates of a log's trajectories in one run."""

    trajectories: set[str] = field(default_factory=set)
    groups: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    """Reward and leave-one-out advantage by trajectory, by group id."""
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Reason and trajectory, or reason and episode where no trajectory went out."""


def expect(events: Iterable[Any]) -> ExpectedFates:
    """Work out the fates from whichever events are there, in whatever order, however often."""
    unique = {event.event_id: event for event in events}.values()
    by_episode: dict[str, list[Any]] = defaultdict(list)
    for event in unique:
        by_episode[event.episode_id].append(event)
    expected, members = ExpectedFates(), defaultdict[str, dict[str, float]](dict)
    for episode, events_of_episode in by_episode.items():
        start = next((event for event in events_of_episode if isinstance(event, EpisodeStarted)), None)
        if start is None:
            if any(not isinstance(event, RewardReported) for event in events_of_episode):
                expected.dropped["missing_events", episode] += 1
            continue
        name = trajectory_id(episode)
        expected.trajectories.add(name)
        reward = [event.value for event in events_of_episode if isinstance(event, RewardReported)]
        if not _whole(events_of_episode):
            expected.dropped["missing_events", name] += 1
        elif not any(isinstance(event, TurnRecorded) for event in events_of_episode):
            expected.dropped["no_turns", name] += 1
        elif not reward:
            expected.dropped["score_missing", name] += 1
        else:
            members[start.group_id or ""][name] = reward[0] or 0.0
    for group, rewards in members.items():
        if len(rewards) < 2:
            expected.dropped["incomplete_group", next(iter(rewards))] += 1
        else:
            expected.groups[group] = leave_one_out(rewards)
    return expected


def leave_one_out(rewards: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Return reward and advantage by trajectory."""
    return {
        name: (reward, reward - fmean(other for mate, other in rewards.items() if mate != name))
        for name, reward in rewards.items()
    }


def _whole(events: list[Any]) -> bool:
    """Whether no event is known to be missing: counts where the episode ended, else gaps."""
    ended = any(isinstance(event, EpisodeEnded) for event in events)
    by_writer: dict[str, list[Any]] = defaultdict(list)
    for event in events:
        by_writer[event.writer_id].append(event)
    for sent in by_writer.values():
        numbers = {event.sequence for event in sent}
        counts = [event.count for event in sent if isinstance(event, WriterClosed)]
        if ended and not counts:
            return False
        if numbers != set(range(max(numbers) + 1)):
            return False
    return True
