"""A record through the stages' own steps: whatever follows from it goes on through all that read it, then the next one.

Scores and records of the runs' log wait for the end of their round, since only live knows in which order the partitions
of a round came together. The first effects stage is asked about all that one piece brought it, a later one at the end
of the round; drops and dead letters, which all stages write into one topic each, wait for that end too. So the output
does not depend on how much was read at once.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rollbus.schemas.codec import decode, encode
from rollbus.schemas.errors import RecordError
from rollbus.schemas.limits import MAX_RECORD_BYTES
from rollbus.schemas.record_makers import maker
from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.records.groups import TrainingBatch
from rollbus.schemas.records.trajectories import Location
from rollbus.schemas.topics import BATCHES, DEAD_LETTERS, DROPS, RUN_LOG, SCORES, TOPICS, Topic, topic_of
from rollbus.streams.exactly_once.batch import Partition, RawRecord
from rollbus.streams.exactly_once.processing import dead_letter, encode_outputs
from rollbus.streams.replay.decide.output import Output, Partitioner
from rollbus.streams.replay.decide.reader import Reader, UnfetchedRecord
from rollbus.streams.replay.decide.stage_output import StageOutput
from rollbus.streams.state.stage import Incoming, Outgoing

FORGET_EVERY = 5_000
"""Records after which the states drop their lists of touched rows, which only a changelog needs."""

IN_ORDER = (SCORES.name, RUN_LOG.name)
"""Where grouping and curriculum decide by the order of what came from several partitions."""

_incoming, _location = maker(Incoming), maker(Location)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MadeRecord:
    """A record that waits for the end of its round."""

    topic: Topic
    partition: int
    key: str
    record: Any
    data: bytes


class StoppedError(Exception):
    """A shadow is to stop; what it would do next is left for its next start."""


class Steps:
    """The stages of a chain with their states, and what they make on its way into the replay's namespace."""

    def __init__(
        self,
        readers: Sequence[Reader],
        *,
        partitions: int,
        output: Output,
        partition_of: Partitioner,
        namespace: str,
        app_version: str,
        stop: asyncio.Event | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        """Take the stages in the order of the flow; once `stop` is set, whatever would go on raises StoppedError."""
        self._readers, self._partitions, self._output, self._partition_of = readers, partitions, output, partition_of
        self._app_version, self._stop, self._max_bytes = app_version, stop, max_record_bytes
        self._full_names = {topic.name: topic.full_name(namespace) for topic in TOPICS}
        self.input = readers[0].input
        self._first = [reader for reader in readers if reader.input is self.input]
        inputs = dict.fromkeys(reader.input.name for reader in readers)
        self._following = {
            name: [reader for reader in readers if reader.input.name == name]
            for name in inputs
            if name != self.input.name
        }
        asking = [reader for reader in readers if reader.has_effects]
        self._asked_at_once = [reader for reader in asking if reader.input is asking[0].input]
        self._waiting: dict[str, list[MadeRecord]] = {name: [] for name in IN_ORDER if name in self._following}
        """By topic: what was made in this round and is not in its topic yet."""
        self._touched = 0
        self.drops: Counter[str] = Counter()
        """How many there are of each reason."""
        self.failures: Counter[str] = Counter()
        """How many scores failed for each error."""

    # From record to record

    def _deliver(self, readers: Iterable[Reader], partition: int, incoming: Incoming) -> None:
        for reader in readers:
            reader.records_in += 1
            if reader.has_effects:
                reader.waiting.append((partition, incoming))
            else:
                self._step(reader, partition, incoming, None)

    def _step(self, reader: Reader, partition: int, incoming: Incoming, answer: Any) -> None:
        state, step = reader.states[partition], reader.stage.step
        try:
            outputs = tuple(step(state, incoming, answer) if reader.has_effects else step(state, incoming))
        except RecordError as error:
            place = Partition(incoming.location.topic, partition)
            self._dead_letter(reader, self._as_fetched(incoming), place, error)
            return
        outputs_written = [
            outgoing for out in outputs for outgoing in self._emit_output(reader, partition, out, incoming)
        ]
        for out in outputs_written:
            if out.topic is BATCHES:
                self._answer_batch(out.record)

    def _as_fetched(self, incoming: Incoming) -> RawRecord:
        """Return the record that a stage was given as it was read; one that the replay made was never read."""
        return UnfetchedRecord.of(incoming)

    def _answer_batch(self, batch: TrainingBatch) -> None:
        """Take note of a batch that was cut."""

    async def _ask_waiting(self, readers: Sequence[Reader] | None = None) -> None:
        """Let these effects stages, or all, answer what waits for them, in the order of the flow."""
        while reader := next((reader for reader in readers or self._readers if reader.waiting), None):
            waiting, reader.waiting = reader.waiting, []
            answers = await run_unless_stopped(self._stop, self._collect_answers(reader, waiting))
            for (partition, incoming), answer in zip(waiting, answers, strict=True):
                self._step(reader, partition, incoming, answer)

    async def _collect_answers(self, reader: Reader, waiting: Sequence[tuple[int, Incoming]]) -> list[Any]:
        answers: dict[int, Iterable[Any]] = {}
        for partition in sorted({partition for partition, _ in waiting}):
            questions = [incoming for number, incoming in waiting if number == partition]
            answers[partition] = iter(await reader.stage.answer(reader.states[partition], questions))
        return [next(iter(answers[partition])) for partition, _ in waiting]

    def _check_stop(self) -> None:
        """Raise StoppedError if the replay is to stop."""
        if self._stop is not None and self._stop.is_set():
            raise StoppedError

    # What goes out

    def _emit_output(self, reader: Reader, partition: int, out: Outgoing, incoming: Incoming) -> list[Outgoing]:
        """Write an output, or what goes out in place of one that is too large; return what was written."""
        try:
            encoded_outputs = encode_outputs(out, reader.states[partition], reader.name, self._max_bytes)
        except RecordError as error:
            place = Partition(incoming.location.topic, partition)
            self._dead_letter(reader, self._as_fetched(incoming), place, error)
            return []
        for outgoing, data in encoded_outputs:
            reader.count(partition, outgoing.topic.name, outgoing.key, outgoing.record, data)
            self._route_output(reader, outgoing.topic, outgoing.key, outgoing.record, data)
        return [outgoing for outgoing, _ in encoded_outputs]

    def _route_output(self, reader: Reader, topic: Topic, name: str, record: Any, data: bytes) -> None:
        key = name.encode()
        if topic is DROPS:
            drop = record or decode(data)
            self.drops[drop.reason] += 1
            if drop.reason == DropReason.SCORE_FAILED:
                self.failures[drop.detail] += 1
            reader.held_records.append((topic, self._partition(topic, key), key, data))
        else:
            self._write_in_order(topic, self._partition(topic, key), name, record, data)

    def _deliver_made(self, outputs: Iterable[StageOutput]) -> None:
        for output in outputs:
            reader, topic = self._readers[output.reader_index], topic_of(output.topic)
            if topic is DEAD_LETTERS:
                reader.held_records.append((topic, 0, output.key, output.data))
            else:
                record = output.record() if topic.name in self._following else None
                self._route_output(reader, topic, (output.key or b"").decode(), record, output.data)

    def _write_in_order(self, topic: Topic, partition: int, key: str, record: Any, data: bytes) -> None:
        """Write a record at once, or at the end of its round where the order between partitions matters."""
        waiting = self._waiting.get(topic.name)
        if waiting is None:
            self._write(topic, partition, key, record, data)
        else:
            waiting.append(MadeRecord(topic, partition, key, record, data))

    def _write(self, topic: Topic, partition: int, key: str, record: Any, data: bytes) -> None:
        """Write a record into the replay's namespace and hand it to the stages that read it there."""
        offset = self._output.append(topic, partition, key.encode() if key else None, data)
        readers = self._following.get(topic.name)
        if readers:
            place = _location(self._full_names[topic.name], partition, offset)
            self._deliver(readers, partition, _incoming(record, key, place, data, None, None))

    def _partition(self, topic: Topic, key: bytes) -> int:
        return 0 if topic.partitions == "one" else self._partition_of(key, self._partitions)

    def _dead_letter(self, reader: Reader, raw: RawRecord, place: Partition, error: RecordError) -> None:
        letter = dead_letter(raw, place, error, stage=reader.name, app_version=self._app_version)
        reader.dead_letters += 1
        data = encode(letter)
        reader.count(place.partition, DEAD_LETTERS.name, "", letter, data)
        self._hold_letter(reader, letter.key, data)

    def _hold_letter(self, reader: Reader, key: bytes | None, data: bytes) -> None:
        reader.held_records.append((DEAD_LETTERS, 0, key, data))

    def _write_held(self) -> None:
        for reader in self._readers:
            for topic, partition, key, data in reader.held_records:
                self._output.append(topic, partition, key, data)
            reader.held_records.clear()

    def _forget_touched(self, records: int) -> None:
        self._touched += records
        if self._touched >= FORGET_EVERY:
            self._touched = 0
            for reader in self._readers:
                for state in reader.states:
                    state.forget_touched()


async def run_unless_stopped(stop: asyncio.Event | None, work: Coroutine[Any, Any, T]) -> T:
    """Return what comes of some work; raises StoppedError, and ends the work, if it is to stop before."""
    if stop is None:
        return await work
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():  # what was found until then may be that nothing more comes
            raise StoppedError
        return await working
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
