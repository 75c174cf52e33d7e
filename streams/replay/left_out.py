"""Which recorded records are of forgotten episodes: by the ids they carry, and one in parts by those of the whole."""

from collections import defaultdict
from contextlib import suppress
from typing import Any

from rollbus.schemas.chunks import Chunk
from rollbus.schemas.codec import decode
from rollbus.schemas.errors import RecordError
from rollbus.schemas.joining import Joiner
from rollbus.streams.stage import Incoming


def is_forgotten(record: Any, episodes: frozenset[str]) -> bool:
    """Whether a record says that it is of one of these episodes, or of one below them."""
    ids = getattr(record, "episode_id", None), getattr(record, "root_episode_id", None)
    return not episodes.isdisjoint(ids)


class LeftOut:
    """The list of exclusions, beside what it has met of it."""

    def __init__(self, episodes: frozenset[str]) -> None:
        """Take the episodes on the list."""
        self._episodes = episodes
        self._parts: dict[int, Joiner[None]] = defaultdict(Joiner)
        """By partition."""
        self._large: dict[bytes, str] = {}
        """Digests of records in parts that are left out, with their episodes: parts may come again."""

    def __bool__(self) -> bool:
        """Say whether anybody was forgotten at all."""
        return bool(self._episodes)

    @property
    def open_parts(self) -> int:
        """How many records in parts wait for others of theirs."""
        return sum(map(len, self._parts.values()))

    def keep(self, partition: int, waiting: frozenset[bytes]) -> None:
        """Let go of all parts but those for which the stages wait too, by the digests of their records."""
        joiner = self._parts.get(partition, ())
        for digest in [digest for digest, _ in joiner if digest not in waiting]:
            self._parts[partition].forget(digest)

    def episode(self, partition: int, incoming: Incoming) -> str | None:
        """Return the forgotten episode that a record is of; of one in parts the last tells it."""
        record = incoming.record
        if not isinstance(record, Chunk):
            return self._of(record)
        if record.digest not in self._large and (whole := self._whole(partition, record)) is not None:
            with suppress(RecordError):  # the stage meets it again and names it
                if (found := self._of(decode(whole))) is not None:
                    self._large[record.digest] = found
        return self._large.get(record.digest)

    def _of(self, record: Any) -> str | None:
        return str(record.episode_id) if is_forgotten(record, self._episodes) else None

    def _whole(self, partition: int, chunk: Chunk) -> bytes | None:
        try:
            found = self._parts[partition].add(chunk, None)
        except RecordError:
            return None
        return found.data if found else None
