"""What the state of every stage has: the clock, the configuration in force, deadlines, and indexes."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast

from pydantic import ValidationError

from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.records.config import Config
from rollbus.schemas.records.control import ConfigApplied
from rollbus.schemas.topics import Topic
from rollbus.streams.state.clock import Clock
from rollbus.streams.state.deadlines import Deadlines
from rollbus.streams.state.rows import INT, TEXT
from rollbus.streams.state.table import PartitionState, Table

C = TypeVar("C", bound=Config)
_KEY = "applied"
REMEMBER_MS = 48 * 60 * 60_000
"""How long ids are remembered, so that a repeated record changes nothing: twice the default late horizon, after which
no revision comes."""


class Applied(Generic[C]):
    """The configuration in force: the last one that a record applied, or else the one that the stage was built with."""

    def __init__(self, initial: C, shared_with: "Applied[Any] | None" = None) -> None:
        """With `shared_with` it belongs to another stage: its row is in the same table, under the name of its type."""
        self.table: Table[str] = shared_with.table if shared_with else Table("config", TEXT)
        self._key = type(initial).__name__ if shared_with else _KEY
        self._type = type(initial)
        self._parsed: tuple[str | None, C, str] = (None, initial, initial.config_hash())
        self._initial = self._parsed

    @property
    def value(self) -> C:
        """The configuration."""
        return self._current()[1]

    @property
    def hash(self) -> str:
        """The hash of the configuration, which outputs name."""
        return self._current()[2]

    def apply(self, record: ConfigApplied) -> None:
        """Apply a configuration; raises InvalidRecordError for an invalid one, and changes nothing then."""
        parse(self._type, record)
        self.table.put(self._key, record.content)

    def _current(self) -> tuple[str | None, C, str]:
        content = self.table.rows.get(self._key)
        if content is not self._parsed[0] and content != self._parsed[0]:
            if content is None:
                self._parsed = self._initial
            else:
                self._parsed = (content, *_read_config(self._type, content))
        return self._parsed


def parse(kind: type[C], record: ConfigApplied) -> C:
    """Return the configuration that a ConfigApplied carries; raises InvalidRecordError."""
    try:
        config, _ = _read_config(kind, record.content)
    except ValidationError as error:
        raise InvalidRecordError(f"ConfigApplied for {record.stage}: {error}") from error
    return cast(C, config)


@lru_cache(maxsize=256)
def _read_config(kind: type[C], content: str) -> tuple[C, str]:
    """Return a configuration and its hash; every partition of a stage reads the same ones."""
    config = kind.model_validate_json(content)
    return config, config.config_hash()


def make_misplaced_error(record: Any, topic: Topic) -> InvalidRecordError:
    """Return the error for a record that does not belong into a stage's input."""
    record_names = ", ".join(kind.__name__ for kind in topic.records)
    return InvalidRecordError(f"{type(record).__name__} does not belong into {topic.name}, which holds {record_names}")


class StageState(PartitionState, Generic[C]):
    """Tables with a clock and a configuration; `ensure_rebuilt` derives the indexes after a restore."""

    def __init__(self, config: C, *tables: Table[Any]) -> None:
        self.clock, self.config = Clock(), Applied(config)
        super().__init__(self.clock.table, self.config.table, *tables)
        self.due = Deadlines(self.deadline)
        self._restored = False

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Apply one changelog row."""
        super().restore(key, value)
        self._restored = True

    def ensure_rebuilt(self) -> None:
        """Rebuild the indexes if rows were restored; every step begins with it."""
        if self._restored:
            self._restored = False
            self.rebuild()

    def rebuild(self) -> None:
        """Derive the indexes from the rows; a state with indexes of its own adds them."""
        self.watch_all()

    def watch_all(self) -> None:
        """Derive every deadline again, after a restore or under another configuration."""
        self.due.rebuild(self.waiting_keys())

    def waiting_keys(self) -> Iterable[str]:
        """Return the keys that have a deadline."""
        raise NotImplementedError

    def deadline(self, key: str) -> int | None:
        """Return when a key is due, in stream time; None if it is not waiting."""
        raise NotImplementedError

    @property
    def now_ms(self) -> int:
        """Stream time."""
        return self.clock.now_ms

    @property
    def last_tick(self) -> int:
        """Number of the last tick."""
        return self.clock.last_tick


class RememberingState(StageState[C]):
    """A state that remembers which ids it has seen, for REMEMBER_MS."""

    def __init__(self, config: C, *tables: Table[Any]) -> None:
        self.seen: Table[int] = Table("seen", INT)
        """Stream time when an id came."""
        super().__init__(config, *tables, self.seen)

    def is_first_time(self, key: str) -> bool:
        """Say whether an id is new, and remember it."""
        if self.seen.get(key) is not None:
            return False
        self.seen.put(key, self.clock.now_ms)
        self.due.watch(key)
        return True

    def forget_old(self) -> None:
        """Forget the ids whose time is over."""
        for key in self.due.due(self.clock.now_ms):
            self.seen.delete(key)

    def waiting_keys(self) -> Iterable[str]:
        """Return the ids seen."""
        return self.seen.rows

    def deadline(self, key: str) -> int | None:
        """Return when an id is forgotten."""
        seen_ms = self.seen.get(key)
        return None if seen_ms is None else self.clock.since(seen_ms) + REMEMBER_MS


def keys_by_kind(rows_by_kind: Mapping[str, Iterable[str]]) -> Iterable[str]:
    """Return the keys of several tables, each after the letter of its table."""
    return (kind + key for kind, keys in rows_by_kind.items() for key in keys)
