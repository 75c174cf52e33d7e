"""A transactional log in memory, as strict as Kafka's where it matters.

Outputs are in the log as soon as they are sent and count once their transaction has committed: readers stop before an
open transaction and skip an aborted one, so offsets have holes. Of two writers with one transactional id the newer
fences the older and aborts what that one left open. It holds bytes; what they say is read when somebody asks.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from rollbus.schemas.chunks import is_chunk, parse
from rollbus.schemas.codec import decode
from rollbus.schemas.errors import RecordError
from rollbus.schemas.topics import Topic
from rollbus.schemas.trajectories import Location, Trajectory
from rollbus.streams.batch import Batch, Partition
from rollbus.streams.output_kafka import partition_of
from rollbus.streams.stage import Incoming

Cheat = Literal["", "offsets_apart", "outputs_apart", "row_left_out", "no_fencing", "read_uncommitted"]
"""A guarantee that is missing, for the negative controls."""
K = TypeVar("K")
V = TypeVar("V")
Place = tuple[str, int]
"""A topic without namespace, and its partition."""


class FencedError(Exception):
    """A newer writer has this transactional id."""


@dataclass(slots=True, eq=False)
class Transaction:
    """What one writer has sent since its last commit."""

    writer: str
    epoch: int
    state: Literal["open", "committed", "aborted"] = "open"
    rows: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    places: set[Place] = field(default_factory=set)


@dataclass(slots=True)
class Entry:
    """One offset of a partition, in the form in which a fetched record is given; a marker of a transaction's end has
    no value."""

    offset: int
    key: bytes
    value: bytes | None
    transaction: Transaction
    timestamp: int = 0
    _record: Any = None

    @property
    def record(self) -> Any:
        """What the bytes say; None for a marker and for what cannot be read."""
        if self._record is None and self.value is not None:
            try:
                self._record = parse(self.value) if is_chunk(self.value) else decode(self.value)
            except RecordError:
                return None
        return self._record

    def incoming(self, place: Place) -> Incoming:
        """Return it as a stage takes it, if it can be read."""
        location = Location(topic=place[0], partition=place[1], offset=self.offset)
        return Incoming(self.record, self.key.decode(), location, self.value or b"")


class Broker:
    """Topics, changelogs, offsets and writers' epochs."""

    def __init__(self, partitions: int, cheat: Cheat = "") -> None:
        self.partitions, self.cheat = partitions, cheat
        self.entries: dict[Place, list[Entry]] = defaultdict(list)
        self.offsets: dict[str, int] = defaultdict(int)
        self.changelogs: dict[str, list[tuple[bytes, bytes | None]]] = defaultdict(list)
        self._epochs: dict[str, int] = defaultdict(int)
        self._open: dict[str, Transaction] = {}
        self._outside = Transaction("outside", 0, "committed")

    def partitions_of(self, topic: Topic) -> int:
        """Return how many partitions a topic has."""
        return self.partitions if topic.partitions == "events" else 1

    def place(self, topic: Topic, key: bytes) -> Place:
        """Return where records of a key go."""
        return topic.name, partition_of(key, self.partitions_of(topic)) if key else 0

    def publish(self, topic: Topic, key: str, data: bytes, partition: int | None = None) -> None:
        """Append a record from outside, as a producer or the ticker does."""
        place = self.place(topic, key.encode()) if partition is None else (topic.name, partition)
        self._append(place, key.encode(), data, self._outside)

    def register(self, writer: str) -> int:
        """Begin a writer's new life: fence the old one, abort what it left open; return the epoch."""
        left = self._open.pop(writer, None)
        if left is not None:
            self._end(left, "aborted")
        self._epochs[writer] += 1
        return self._epochs[writer]

    def begin(self, writer: str, epoch: int) -> Transaction:
        """Open a transaction; raises FencedError."""
        self._check(writer, epoch)
        transaction = self._open[writer] = Transaction(writer, epoch)
        return transaction

    def send(self, transaction: Transaction, topic: Topic, key: bytes, data: bytes) -> None:
        """Append a record that counts once the transaction commits; raises FencedError."""
        self._check(transaction.writer, transaction.epoch)
        place = self.place(topic, key)
        owner = transaction
        if self.cheat == "outputs_apart":
            owner = Transaction(transaction.writer, transaction.epoch, "committed")
        transaction.places.add(place)
        self._append(place, key, data, owner)

    def log_rows(self, transaction: Transaction, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Add changelog rows to a transaction."""
        transaction.rows.extend(rows)
        if self.cheat == "row_left_out" and len(transaction.rows) > 1:
            transaction.rows.pop()

    def send_offset(self, transaction: Transaction, offset: int) -> None:
        """With the offset a transaction is whole, but not committed."""
        if self.cheat == "offsets_apart":
            self.offsets[transaction.writer] = offset

    def commit(self, transaction: Transaction, offset: int) -> None:
        """Let outputs, changelog rows and offset count, all at once; raises FencedError."""
        self._check(transaction.writer, transaction.epoch)
        self._open.pop(transaction.writer, None)
        self.changelogs[transaction.writer].extend(transaction.rows)
        self.offsets[transaction.writer] = offset
        self._end(transaction, "committed")

    def read(self, place: Place, position: int, at_most: int) -> Batch:
        """Return committed records from a position on as one batch."""
        found: list[Entry] = []
        entries, end = self.entries[place], position
        while end < len(entries) and len(found) < at_most:
            entry = entries[end]
            state = "committed" if self.cheat == "read_uncommitted" else entry.transaction.state
            if state == "open":
                break
            if state == "committed" and entry.value is not None:
                found.append(entry)
            end += 1
        return Batch(Partition(*place), position, end, found)

    def is_waiting(self, place: Place, position: int) -> bool:
        """Say whether there is nothing to read from a position on, though there may be soon."""
        entries = self.entries[place]
        if position >= len(entries):
            return True
        return entries[position].transaction.state == "open" and self.cheat != "read_uncommitted"

    def has_open(self, writer: str) -> bool:
        """Say whether a writer has left a transaction open; readers wait until it is ended."""
        return writer in self._open

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        """Return the trajectories that stand at locations, as a payload does."""
        found = {}
        for at in locations:
            entries = self.entries[at.topic, at.partition]
            record = entries[at.offset].record if at.offset < len(entries) else None
            if isinstance(record, Trajectory):
                found[at] = record
        return found

    def committed(self, topic: Topic, partition: int | None = None) -> list[Incoming]:
        """Return a topic's committed records, of one partition where that is named."""
        numbers = range(self.partitions_of(topic)) if partition is None else (partition,)
        places = [(topic.name, number) for number in numbers]
        return [entry.incoming(place) for place in places for entry in self._visible(place)]

    def records(self, topic: Topic) -> Iterator[Any]:
        """Return what a topic's committed records say."""
        places = [(topic.name, number) for number in range(self.partitions_of(topic))]
        return (entry.record for place in places for entry in self._visible(place))

    def written(self) -> dict[tuple[str, Place], list[tuple[str, Any]]]:
        """Return committed keys and records by writer and place, in order."""
        return self._by_writer(lambda entry: (entry.key.decode(), entry.record))

    def frames(self) -> dict[tuple[str, Place], list[tuple[bytes, bytes]]]:
        """Return committed keys and bytes by writer and place, in order."""
        return self._by_writer(lambda entry: (entry.key, entry.value or b""))

    def _by_writer(self, row: Callable[[Entry], tuple[K, V]]) -> dict[tuple[str, Place], list[tuple[K, V]]]:
        found = defaultdict[tuple[str, Place], list[tuple[K, V]]](list)
        for place in self.entries:
            for entry in self._visible(place):
                found[entry.transaction.writer, place].append(row(entry))
        return found

    def _visible(self, place: Place) -> Iterator[Entry]:
        return (
            each for each in self.entries[place] if each.value is not None and each.transaction.state == "committed"
        )

    def _append(self, place: Place, key: bytes, data: bytes, transaction: Transaction) -> None:
        entries = self.entries[place]
        entries.append(Entry(len(entries), key, data, transaction))

    def _end(self, transaction: Transaction, state: Literal["committed", "aborted"]) -> None:
        transaction.state = state
        for place in transaction.places:
            entries = self.entries[place]
            entries.append(Entry(len(entries), b"", None, transaction))

    def _check(self, writer: str, epoch: int) -> None:
        if self._epochs[writer] != epoch and self.cheat != "no_fencing":
            raise FencedError(f"{writer} of epoch {epoch}; the newest is {self._epochs[writer]}")
