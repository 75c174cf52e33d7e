"""Records of forgotten episodes: which they are, and an archive's files written again without them.

The new files are published by a manifest that replaces the old ones, and then these are deleted. What else is in the
files, and the chain, stay as they were. Offsets of the removed records are gaps, as those of transactions are.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rollbus.archive.archive import Archive
from rollbus.archive.manifest import ArchivedFile
from rollbus.schemas.codec import decode, decode_if
from rollbus.schemas.errors import RecordError
from rollbus.schemas.ids import trajectory_id
from rollbus.schemas.records.drops import DeadLetter, Drop
from rollbus.schemas.records.events import AliasDeclared, Event, Excluded, RewardReported
from rollbus.schemas.topics import (
    ALIASES,
    DEAD_LETTERS,
    DROPS,
    EPISODE_EVENTS,
    RESAMPLE_REQUESTS,
    SCORES,
    TRAJECTORIES,
)
from rollbus.streams.replay.decide.output import is_forgotten

CONTENT = frozenset(
    topic.name for topic in (EPISODE_EVENTS, ALIASES, TRAJECTORIES, SCORES, RESAMPLE_REQUESTS, DROPS, DEAD_LETTERS)
)
"""Topics with texts, token ids or labels; the others have ids and numbers, which explain what was trained."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Whose records go."""

    episodes: frozenset[str] = frozenset()
    trajectories: frozenset[str] = frozenset()
    aliases: frozenset[str] = frozenset()
    needles: tuple[bytes, ...] = ()
    """Their ids as bytes, for what cannot be decoded."""

    @classmethod
    def of(cls, episodes: frozenset[str], aliases: frozenset[str]) -> "Forgotten":
        """Return the matcher of these episodes."""
        trajectories = frozenset(map(trajectory_id, episodes))
        needles = tuple(episode.encode() for episode in sorted(episodes | trajectories))
        return cls(episodes, trajectories, aliases, needles)

    def covers(self, topic: str, record: Any) -> bool:
        """Whether a record holds content of one of these episodes."""
        if not self.episodes or topic not in CONTENT or record.value is None:
            return False
        try:
            content = decode(record.value)
        except RecordError:
            return self._mentions_episode(record.key, record.value)
        if isinstance(content, Excluded):
            return False
        if isinstance(content, DeadLetter):
            return self._mentions_episode(content.key, content.value, content.message.encode())
        if isinstance(content, Drop):
            return bool(content.detail) and content.unit_id in self.episodes | self.trajectories
        if isinstance(content, RewardReported) and content.alias in self.aliases:
            return True
        if isinstance(content, Event) and content.root_episode_id in self.aliases:  # of what resumed a paused episode
            return True
        return is_forgotten(content, self.episodes) or getattr(content, "trajectory_id", None) in self.trajectories

    def _mentions_episode(self, *parts: bytes | None) -> bool:
        text = b" ".join(part for part in parts if part)
        return any(needle in text for needle in self.needles)


def find_aliases(values: Iterable[bytes | None], episodes: frozenset[str]) -> frozenset[str]:
    """Return the aliases by which these episodes were named: a report by alias names no episode."""
    declared = (decode_if(value, AliasDeclared) for value in values)
    return frozenset(
        declaration.alias for declaration in declared if declaration is not None and is_forgotten(declaration, episodes)
    )


def forget_in_archive(
    archive: Archive,
    episodes: frozenset[str],
    *,
    now_ms: int,
    version: str,
    progress: Progress = lambda done, of: None,
) -> int:
    """Write the files that hold records of these episodes again without them, and return how many records that were.

    Killed anywhere, nothing is lost, and the same command goes on. Raises DataLossError, FencedError, ServiceError.
    """
    replaced, added, removed = list[str](), list[ArchivedFile](), 0
    for file, remaining_records, count in _find_affected_files(archive, episodes, progress):
        removed += count
        replaced.append(file.path)
        if remaining_records:
            added.append(archive.add_file((file.topic, file.partition), file.begin, file.end, remaining_records))
    if replaced:
        last = archive.contents.manifests[-1]
        archive.publish(
            namespace=last.namespace,
            cluster=last.cluster,
            version=version,
            written_at_ms=now_ms,
            purpose="forget",
            files=tuple(added),
            replaced=tuple(replaced),
            partitions=last.partitions,
        )
    archive.storage.delete(archive.find_unnamed())
    return removed


def _find_affected_files(
    archive: Archive, episodes: frozenset[str], progress: Progress
) -> Iterable[tuple[ArchivedFile, Any, int]]:
    """Yield each file that holds records of these episodes, the records that stay, and how many go."""
    files = sorted(file for file in archive.contents.files.values() if file.topic in CONTENT)
    aliases = frozenset[str]()
    for file in files if episodes else ():
        if file.topic == ALIASES.name:
            aliases |= find_aliases((record.value for record in archive.read_file(file)), episodes)
    forgotten = Forgotten.of(episodes, aliases)
    for number, file in enumerate(files if episodes else (), 1):
        records = archive.read_file(file)
        remaining_records = [record for record in records if not forgotten.covers(file.topic, record)]
        if len(remaining_records) < len(records):
            yield file, remaining_records, len(records) - len(remaining_records)
        progress(number, len(files))
