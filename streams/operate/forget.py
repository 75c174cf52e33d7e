"""Find the episodes to forget by labels or ids, with those of their sub-agents, and make their exclusions. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rollbus.schemas.ids import stable_id, trajectory_id
from rollbus.schemas.records.control import OPERATOR
from rollbus.schemas.records.events import EpisodeStarted, Excluded

ORIGIN = "resampled_from"
"""The label by which a resampled attempt names the trajectory whose opening it repeats."""


@dataclass(frozen=True, slots=True, order=True)
class RootedEpisode:
    """One episode, and the one that it belongs to."""

    episode_id: str
    root_episode_id: str


@dataclass(slots=True)
class Search:
    """Episodes with all of these labels; with a root, all that belong to it."""

    labels: Mapping[str, str]
    episode_ids: frozenset[str] = frozenset()
    """Asked for by id."""
    roots: set[str] = field(default_factory=set)
    seen: dict[str, str] = field(default_factory=dict)
    """Root by episode id, of every start that was looked at."""
    attempts: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Roots of resampled attempts, by the trajectory whose opening they repeat."""

    def add_start(self, start: EpisodeStarted) -> None:
        """Take note of a start."""
        self.seen[start.episode_id] = start.root_episode_id
        labelled = bool(self.labels) and all(start.labels.get(name) == value for name, value in self.labels.items())
        if labelled or start.episode_id in self.episode_ids:
            self.roots.add(start.root_episode_id)
        if origin := start.labels.get(ORIGIN):
            self.attempts[origin].add(start.root_episode_id)

    def matching_episodes(self) -> list[RootedEpisode]:
        """Return every episode whose root, or itself, matched."""
        return self._below(self.roots)

    def attempts_at(self, episode_ids: Iterable[str]) -> list[RootedEpisode]:
        """Return what was resampled of these episodes: it holds what the person said first."""
        origins = (trajectory_id(episode_id) for episode_id in episode_ids)
        return self._below({root for origin in origins for root in self.attempts.get(origin, ())})

    def _below(self, roots: set[str]) -> list[RootedEpisode]:
        episodes = {RootedEpisode(episode_id, root) for episode_id, root in self.seen.items() if root in roots}
        return sorted(episodes | {RootedEpisode(root, root) for root in roots})


def exclusions(episodes: Iterable[RootedEpisode], *, reason: str, now_ms: int) -> list[Excluded]:
    """Return the records that exclude episodes; the same episode gives the same id however often it is forgotten."""
    return [
        Excluded(
            event_id=stable_id("forget", episode.episode_id),
            episode_id=episode.episode_id,
            root_episode_id=episode.root_episode_id,
            writer_id=OPERATOR,
            sequence=-1,
            occurred_at_ms=now_ms,
            episode_started_at_ms=0,
            producer=OPERATOR,
            reason=reason,
        )
        for episode in episodes
    ]
