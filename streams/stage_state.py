"""What the state of every stage has: the clock, the configuration in force, parts of large records, and indexes."""

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from rollbus.schemas.chunks import Chunk
from rollbus.schemas.config import Config
from rollbus.schemas.control import ConfigApplied
from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.topics import Topic
from rollbus.streams.chunking import ChunkParts
from rollbus.streams.clock import Clock
from rollbus.streams.rows import TEXT
from rollbus.streams.stage import Incoming
from rollbus.streams.state import PartitionState, Table

C = TypeVar("C", bound=Config)
_KEY = "applied"
PARTS_GRACE_MS = 10 * 60_000
"""How long parts that another stage wrote are waited for; it writes them in one transaction."""


class Applied(Generic[C]):
    """The configuration in force: the one last applied by a record, else the one the stage was built with."""

    def __init__(self, initial: C, beside: "Applied[Any] | None" = None) -> None:
        """With `beside` it is another stage's, and its row stands in the same table under the name of its type."""
        self.table: Table[str] = beside.table if beside else Table("config", TEXT)
        self._key = type(initial).__name__ if beside else _KEY
        self._type = type(initial)
        self._parsed: tuple[str | None, C, str] = (None, initial, initial.config_hash())
        self._initial = self._parsed

    @property
    def value(self) -> C:
        """The configuration."""
        return self._current()[1]

    @property
    def hash(self) -> str:
        """Its hash, which outputs name."""
        return self._current()[2]

    def apply(self, record: ConfigApplied) -> None:
        """Switch to the record's configuration; raises InvalidRecordError where it is none, and changes nothing."""
        parse(self._type, record)
        self.table.put(self._key, record.content)

    def _current(self) -> tuple[str | None, C, str]:
        content = self.table.rows.get(self._key)
        if content is not self._parsed[0] and content != self._parsed[0]:
            if content is None:
                self._parsed = self._initial
            else:
                config = self._type.model_validate_json(content)
                self._parsed = (content, config, config.config_hash())
        return self._parsed


def parse(kind: type[C], record: ConfigApplied) -> C:
    """Return the configuration that a ConfigApplied carries; raises InvalidRecordError."""
    try:
        return kind.model_validate_json(record.content)
    except ValidationError as error:
        raise InvalidRecordError(f"ConfigApplied for {record.stage}: {error}") from error


def misplaced(record: Any, topic: Topic) -> InvalidRecordError:
    """Return the error for a record that does not belong into a stage's input."""
    known = ", ".join(kind.__name__ for kind in topic.records)
    return InvalidRecordError(f"{type(record).__name__} does not belong into {topic.name}, which holds {known}")


class StageState(PartitionState):
    """Tables with a clock; after a restore, `fresh` rebuilds what is derived from them."""

    def __init__(self, *tables: Table[Any]) -> None:
        self.clock, self.chunks = Clock(), ChunkParts()
        super().__init__(self.clock.table, *tables, self.chunks.table)
        self._restored = False

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Apply one changelog row."""
        super().restore(key, value)
        self._restored = True

    def fresh(self) -> None:
        """Rebuild the indexes if rows were restored; every step begins with it."""
        if self._restored:
            self._restored = False
            self.chunks.rebuild()
            self.rebuild()

    def rebuild(self) -> None:
        """Derive the indexes from the rows; nothing to do where there are none."""

    def whole(self, incoming: Incoming) -> Incoming | None:
        """Return a record as it is, or the one that a chunk has made whole; None while parts are missing."""
        return self.chunks.collect(incoming, self.clock.now_ms) if type(incoming.record) is Chunk else incoming

    def wholes(self, incoming: Sequence[Incoming]) -> list[Incoming | None]:
        """Return what `whole` will say of each record of a batch; changes nothing."""
        return self.chunks.foreseen(incoming, self.clock, PARTS_GRACE_MS)

    def lost_parts(self) -> Iterable[str]:
        """Give up large records of another stage whose other parts never came; return their digests, sorted."""
        return self.chunks.expire(self.clock.now_ms - PARTS_GRACE_MS)

    def refuse(self, record: Any) -> Incoming | None:
        """Hear that the stage would not take a record; return it whole where it came in chunks."""
        return self.chunks.refuse(record) if type(record) is Chunk else None
