"""A transactional log in memory, as strict as Kafka's where it matters.

Outputs are in the log as soon as they are sent and count once their transaction has committed: readers stop before an
open transaction and skip an aborted one, so offsets have holes. Of two writers with one transactional id the newer
fences the older and aborts what that one left open. A task is a partition that somebody works on: it has an offset, a
changelog, and the last task that claimed it, in the generation of that time. It holds bytes; what they say is read when
somebody asks.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from rollbus.runtime.kafka.writing import partition_of
from rollbus.schemas.codec import decode
from rollbus.schemas.errors import RecordError
from rollbus.schemas.records.trajectories import Location, Trajectory
from rollbus.schemas.topics import Topic
from rollbus.streams.exactly_once.batch import Batch, Partition
from rollbus.streams.state.stage import Incoming

Cheat = Literal["", "offsets_apart", "outputs_apart", "row_left_out", "no_fencing", "late_claims", "read_uncommitted"]
"""A guarantee that is missing, for the negative controls."""
V = TypeVar("V")
Headers = tuple[tuple[str, bytes], ...]
Place = tuple[str, int]
"""A topic without namespace, and its partition."""


class FencedError(Exception):
    """A newer writer has this transactional id, or the partitions were assigned again."""


@dataclass(slots=True, eq=False)
class Transaction:
    """What one writer has sent since its last commit."""

    writer: str
    epoch: int
    state: Literal["open", "committed", "aborted"] = "open"
    rows: dict[str, list[tuple[bytes, bytes | None]]] = field(default_factory=dict)
    """By task."""
    offsets: dict[str, int] = field(default_factory=dict)
    places: set[Place] = field(default_factory=set)


@dataclass(slots=True)
class Entry:
    """One offset of a partition, in the form in which a fetched record is given; a marker of a transaction's end has
    no value."""

    offset: int
    key: bytes
    value: bytes | None
    transaction: Transaction
    task: str = ""
    headers: Headers = ()
    timestamp: int = 0
    _record: Any = None

    @property
    def record(self) -> Any:
        """What the bytes say; None for a marker and for what cannot be read."""
        if self._record is None and self.value is not None:
            try:
                self._record = decode(self.value)
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
        self.owners: dict[str, str] = {}
        """Who has claimed each task, or has committed last."""
        self.generation = 0
        self.changelogs: dict[str, list[tuple[bytes, bytes | None]]] = defaultdict(list)
        self._epochs: dict[str, int] = defaultdict(int)
        self._open: dict[str, Transaction] = {}
        self._ending: dict[str, Transaction] = {}
        """Committed, but not readable yet."""
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
        self.complete(writer)
        left = self._open.pop(writer, None)
        if left is not None:
            self._end(left, "aborted")
        self._epochs[writer] += 1
        return self._epochs[writer]

    def require(self, generation: int) -> None:
        """Raise FencedError where tasks were assigned again since."""
        if generation != self.generation and self.cheat != "late_claims":
            raise FencedError(f"generation {generation}; the present one is {self.generation}")

    def claim(self, task: str, writer: str, offset: int, generation: int) -> None:
        """Note who works on a task from now on; raises FencedError."""
        self.require(generation)
        self.owners[task], self.offsets[task] = writer, offset

    def begin(self, writer: str, epoch: int) -> Transaction:
        """Open a transaction; raises FencedError."""
        self._check(writer, epoch)
        self.complete(writer)
        transaction = self._open[writer] = Transaction(writer, epoch)
        return transaction

    def send(
        self, transaction: Transaction, task: str, topic: Topic, key: bytes, data: bytes, headers: Headers = ()
    ) -> None:
        """Append a task's record that counts once the transaction commits; raises FencedError."""
        self._check(transaction.writer, transaction.epoch)
        place = self.place(topic, key)
        owner = transaction
        if self.cheat == "outputs_apart":
            owner = Transaction(transaction.writer, transaction.epoch, "committed")
        transaction.places.add(place)
        self._append(place, key, data, owner, task, headers)

    def log_rows(self, transaction: Transaction, task: str, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Add a task's changelog rows to a transaction."""
        logged = transaction.rows.setdefault(task, [])
        logged.extend(rows)
        if self.cheat == "row_left_out" and len(logged) > 1:
            logged.pop()

    def send_offset(self, transaction: Transaction, task: str, offset: int) -> None:
        """With its offset a task's part of a transaction is whole, but not committed."""
        transaction.offsets[task] = offset
        if self.cheat == "offsets_apart":
            self.offsets[task] = offset

    def commit(self, transaction: Transaction, *, late: bool = False) -> None:
        """Let outputs, changelog rows and offsets count, all at once; raises FencedError.

        What is committed `late` can be read a while after the writer was told, as Kafka writes its markers: at the
        latest when the writer begins its next transaction, or is fenced.
        """
        self._check(transaction.writer, transaction.epoch)
        self._open.pop(transaction.writer, None)
        self._ending[transaction.writer] = transaction
        if not late:
            self.complete(transaction.writer)

    def complete(self, writer: str) -> None:
        """Let what a writer has committed be read."""
        transaction = self._ending.pop(writer, None)
        if transaction is None:
            return
        for task, rows in transaction.rows.items():
            self.changelogs[task].extend(rows)
        for task, offset in transaction.offsets.items():
            self.offsets[task], self.owners[task] = offset, transaction.writer
        self._end(transaction, "committed")

    def complete_all(self) -> None:
        """Let all that is committed be read."""
        for writer in list(self._ending):
            self.complete(writer)

    def read(self, place: Place, position: int, at_most: int) -> Batch:
        """Return committed records from a position on as one batch."""
        entries_read: list[Entry] = []
        entries, end = self.entries[place], position
        while end < len(entries) and len(entries_read) < at_most:
            entry = entries[end]
            state = "committed" if self.cheat == "read_uncommitted" else entry.transaction.state
            if state == "open":
                break
            if state == "committed" and entry.value is not None:
                entries_read.append(entry)
            end += 1
        return Batch(Partition(*place), position, end, entries_read)

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
        record_by_location = {}
        for at in locations:
            entries = self.entries[at.topic, at.partition]
            record = entries[at.offset].record if at.offset < len(entries) else None
            if isinstance(record, Trajectory):
                record_by_location[at] = record
        return record_by_location

    def committed(self, topic: Topic, partition: int | None = None) -> list[Incoming]:
        """Return a topic's committed records, of one partition where that is named."""
        numbers = range(self.partitions_of(topic)) if partition is None else (partition,)
        places = [(topic.name, number) for number in numbers]
        return [entry.incoming(place) for place in places for entry in self._visible(place)]

    def entries_of(self, topic: Topic, partition: int) -> list[Entry]:
        """Return the committed records of a partition as they would be fetched."""
        return list(self._visible((topic.name, partition)))

    def records(self, topic: Topic) -> Iterator[Any]:
        """Return what a topic's committed records say."""
        places = [(topic.name, number) for number in range(self.partitions_of(topic))]
        return (entry.record for place in places for entry in self._visible(place))

    def written(self) -> dict[tuple[str, Place], list[tuple[str, Any]]]:
        """Return committed keys and records by task and place, in order."""
        return self._by_task(lambda entry: (entry.key.decode(), entry.record))

    def frames(self) -> dict[tuple[str, Place], list[tuple[bytes, bytes, Headers]]]:
        """Return committed keys, bytes and headers by task and place, in order."""
        return self._by_task(lambda entry: (entry.key, entry.value or b"", entry.headers))

    def _by_task(self, row: Callable[[Entry], V]) -> dict[tuple[str, Place], list[V]]:
        rows_by_task = defaultdict[tuple[str, Place], list[V]](list)
        for place in self.entries:
            for entry in self._visible(place):
                rows_by_task[entry.task, place].append(row(entry))
        return rows_by_task

    def _visible(self, place: Place) -> Iterator[Entry]:
        return (
            entry for entry in self.entries[place] if entry.value is not None and entry.transaction.state == "committed"
        )

    def _append(
        self,
        place: Place,
        key: bytes,
        data: bytes,
        transaction: Transaction,
        task: str = "outside",
        headers: Headers = (),
    ) -> None:
        entries = self.entries[place]
        entries.append(Entry(len(entries), key, data, transaction, task, headers))

    def _end(self, transaction: Transaction, state: Literal["committed", "aborted"]) -> None:
        transaction.state = state
        for place in transaction.places:
            entries = self.entries[place]
            entries.append(Entry(len(entries), b"", None, transaction))

    def _check(self, writer: str, epoch: int) -> None:
        if self._epochs[writer] != epoch and self.cheat != "no_fencing":
            raise FencedError(f"{writer} of epoch {epoch}; the newest is {self._epochs[writer]}")
