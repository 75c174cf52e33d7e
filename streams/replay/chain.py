"""Stages in a chain: recorded records of the first one's input in, every stage's own records out. No Faust, no clock.

A record goes on through all pure stages before the next one is looked at. The first effects stage is asked about all
that one piece brought it, a later one at the end of the round; drops and dead letters, which all stages write into one
topic each, wait for that end too. So the output does not depend on how much was read at once.

The stages of the first input may also run elsewhere, partition by partition (`lane`): a chain without them is given
what they made, in the same order, and does the rest.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rollbus.schemas.chunks import split
from rollbus.schemas.codec import encode
from rollbus.schemas.control import ConfigApplied, Tick
from rollbus.schemas.drops import Drop, DropReason
from rollbus.schemas.errors import RecordError
from rollbus.schemas.groups import TrainingBatch
from rollbus.schemas.replays import StageDigest
from rollbus.schemas.topics import BATCHES, DEAD_LETTERS, DROPS, MAX_RECORD_BYTES, RUN_LOG, Topic, topic_of
from rollbus.schemas.trajectories import Location
from rollbus.streams.batch import Partition, RawRecord
from rollbus.streams.processing import dead_letter, read_record
from rollbus.streams.replay.made import Made
from rollbus.streams.replay.output import Output, Partitioner
from rollbus.streams.replay.reader import Raw, Reader
from rollbus.streams.replay.recorded import BEFORE_ALL, Change, Recorded
from rollbus.streams.replay.rounds import Round
from rollbus.streams.stage import Incoming, Outgoing
from rollbus.streams.stages import AnyStage

ASK_AT_ONCE = 256
"""Records about which an effects stage is asked together."""
FORGET_EVERY = 5_000
"""Records after which the states drop their lists of touched rows, which only a changelog needs."""


BeforeTick = Callable[[int], Awaitable[None]]
"""Called before a tick's records are told again: to read them."""


class Chain:
    """Stages in the order of the flow, on all partitions."""

    def __init__(
        self,
        stages: Sequence[AnyStage],
        *,
        partitions: int,
        output: Output,
        partition_of: Partitioner,
        source_namespace: str,
        namespace: str,
        recorded: Recorded | None = None,
        change: Change = lambda record: record,
        excluded: frozenset[str] = frozenset(),
        early: Mapping[str, Sequence[Incoming]] | None = None,
        before_tick: BeforeTick | None = None,
        app_version: str = "",
        elsewhere: Sequence[Reader] = (),
    ) -> None:
        """`change` is for recorded configurations; `early` are rewards that an episode has from its first event on.

        `elsewhere` are the stages of the first input where others run them.
        """
        self._partitions, self._output, self._partition_of = partitions, output, partition_of
        self._source, self._namespace, self._app_version = source_namespace, namespace, app_version
        self._recorded, self._change, self._before_tick = recorded or Recorded(), change, before_tick
        self._excluded, self._early = excluded, dict(early or {})
        self._told_excluded: set[str] = set()
        self._readers = [*elsewhere, *(Reader.of(stage, partitions) for stage in stages)]
        self._first = [reader for reader in self._readers if reader.input is self._readers[0].input]
        self.input = self._readers[0].input
        self._inputs = list(dict.fromkeys(reader.input.name for reader in self._readers))
        self._by_input = {name: [r for r in self._readers if r.input.name == name] for name in self._inputs}
        self._following = {name: rs for name, rs in self._by_input.items() if name != self.input.name}
        asking = [reader for reader in self._readers if reader.asks]
        self._asked_at_once = [reader for reader in asking if reader.input is asking[0].input]
        self._names = {reader.input.name: reader.input for reader in self._readers}
        self._unanswered: deque[TrainingBatch] = deque()
        self._touched = 0
        self.last_tick = -1
        self.stream_time_ms: int | None = None

    async def open(self) -> None:
        """Tell what held when the range began, before its first record."""
        await self._tell(BEFORE_ALL)

    async def piece(self, partition: int, records: Sequence[RawRecord]) -> None:
        """Take recorded records of the first input."""
        place = Partition(self.input.full_name(self._source), partition)
        for raw in records:
            try:
                incoming = read_record(raw, place)
            except RecordError as error:
                for reader in self._first:
                    self._dead_letter(reader, raw, place, error)
                continue
            if self._excluded and self._is_excluded(partition, incoming):
                continue
            if isinstance(incoming.record, ConfigApplied):
                changed = self._change(incoming.record)
                if changed is None:
                    continue
                incoming = replace(incoming, record=changed, data=encode(changed))
            if self._early:
                for reward in self._early.pop(getattr(incoming.record, "episode_id", ""), ()):
                    self._hand(self._first, partition, reward)
            self._hand(self._first, partition, incoming)
            if len(self._first[0].waiting) >= ASK_AT_ONCE:
                await self._ask(self._asked_at_once)
        await self._ask(self._asked_at_once)
        self._forget(len(records))
        await self._output.settle()

    async def round(self, found: Round) -> None:
        """End the round before and take a tick."""
        await self._begin(found.tick, found.data)
        for partition, raw in found.at:
            place = Location(topic=self.input.full_name(self._source), partition=partition, offset=raw.offset)
            self._hand(self._first, partition, Incoming(found.tick, "", place, found.data))
        await self._ask()
        self._forget(len(found.at) * len(self._readers))

    async def made_piece(self, made: Sequence[Made]) -> None:
        """Take what the first input's stages made elsewhere of a piece."""
        self._take(made)
        await self._ask(self._asked_at_once)
        self._forget(len(made))
        await self._output.settle()

    async def made_round(self, tick: Tick, data: bytes, made: Iterable[Sequence[Made]]) -> None:
        """End the round before, and take a tick and what the first input's stages made of it, by partition."""
        await self._begin(tick, data)
        for each in made:
            self._take(each)
        await self._ask()
        self._forget(len(self._readers))

    async def end(self) -> None:
        """End the last round."""
        await self._ask()
        self._write_held()
        await self._output.settle()

    def digests(self) -> tuple[StageDigest, ...]:
        """Return what each stage made, so far."""
        return tuple(reader.digest() for reader in self._readers)

    def open_rows(self) -> int:
        """Return how many rows all states hold: what a replay's memory grows with."""
        return sum(state.size() for reader in self._readers for state in reader.states)

    async def _begin(self, tick: Tick, data: bytes) -> None:
        """Give a tick to the later stages, before the first ones have it, since live has it in all inputs at once."""
        if tick.number > self.last_tick:
            await self._end_round(tick.number)
            self.last_tick, self.stream_time_ms = tick.number, tick.stream_time_ms
            for name in reversed(self._following):
                await self._everywhere(self._names[name], "", tick, data)

    # From record to record

    def _hand(self, readers: Iterable[Reader], partition: int, incoming: Incoming) -> None:
        for reader in readers:
            reader.records_in += 1
            if reader.asks:
                reader.waiting.append((partition, incoming))
            else:
                self._step(reader, partition, incoming, None)

    def _step(self, reader: Reader, partition: int, incoming: Incoming, answer: Any) -> None:
        state = reader.states[partition]
        try:
            step = reader.stage.step
            outputs = list(step(state, incoming, answer) if reader.asks else step(state, incoming))
        except RecordError as error:
            self._dead_letter(reader, Raw.of(incoming), Partition(incoming.location.topic, partition), error)
            return
        for out in outputs:
            self._emit(reader, partition, out)
        for out in outputs:
            if out.topic is BATCHES:
                self._answer(out.record)

    async def _ask(self, readers: "Sequence[Reader] | None" = None) -> None:
        """Let these effects stages, or all, answer what waits for them, in the order of the flow."""
        while reader := next((each for each in readers or self._readers if each.waiting), None):
            waiting, reader.waiting = reader.waiting, []
            answers = await self._answers(reader, waiting)
            for (partition, incoming), answer in zip(waiting, answers, strict=True):
                self._step(reader, partition, incoming, answer)

    async def _answers(self, reader: Reader, waiting: Sequence[tuple[int, Incoming]]) -> list[Any]:
        found: dict[int, Iterable[Any]] = {}
        for partition in sorted({partition for partition, _ in waiting}):
            asked = [incoming for number, incoming in waiting if number == partition]
            found[partition] = iter(await reader.stage.answer(reader.states[partition], asked))
        return [next(iter(found[partition])) for partition, _ in waiting]

    def _emit(self, reader: Reader, partition: int, out: Outgoing) -> None:
        data = encode(out.record)
        reader.count(partition, out.topic.name, out.key, out.record, data)
        self._place(reader, out.topic, out.key, out.record, data)

    def _place(self, reader: Reader, topic: Topic, name: str, record: Any, data: bytes) -> None:
        key = name.encode()
        if topic is DROPS:
            reader.held.append((topic, self._partition(topic, key), key, data))
        else:
            self._write(topic, self._partition(topic, key), name, record, data)

    def _take(self, made: Iterable[Made]) -> None:
        for one in made:
            reader, topic = self._readers[one.reader], topic_of(one.topic)
            if topic is DEAD_LETTERS:
                reader.held.append((topic, 0, one.key, one.data))
            else:
                record = one.record() if topic.name in self._following else None
                self._place(reader, topic, (one.key or b"").decode(), record, one.data)

    def _write(self, topic: Topic, partition: int, key: str, record: Any, data: bytes) -> None:
        """Write a record into the replay's namespace and hand it to the stages that read it there."""
        offset = self._append(topic, partition, key.encode() if key else None, data)
        readers = self._following.get(topic.name)
        if readers:
            place = Location(topic=topic.full_name(self._namespace), partition=partition, offset=offset)
            self._hand(readers, partition, Incoming(record, key, place, data))

    def _append(self, topic: Topic, partition: int, key: bytes | None, data: bytes) -> int:
        if len(data) <= MAX_RECORD_BYTES:
            return self._output.append(topic, partition, key, data)
        first, *_ = [self._output.append(topic, partition, key, frame) for frame in split(data)]
        return first

    def _partition(self, topic: Topic, key: bytes) -> int:
        return 0 if topic.partitions == "one" else self._partition_of(key, self._partitions)

    # Time, and what live was told

    async def _end_round(self, tick: int) -> None:
        await self._ask()
        if self._before_tick is not None:
            await self._before_tick(tick)
        await self._tell(tick)
        self._write_held()
        await self._output.settle()

    async def _tell(self, tick: int) -> None:
        while due := self._recorded.due(tick):  # an outcome may cut a batch whose own outcome is due as well
            for told in due:
                await self._told(told.topic, told.key, told.record)

    async def _told(self, topic: Topic, key: str, record: Any) -> None:
        if topic.name not in self._following:
            return
        if isinstance(record, ConfigApplied):
            await self._everywhere(topic, key, record, encode(record))
        else:
            self._write(topic, 0, key, record, encode(record))
            await self._ask()

    async def _everywhere(self, topic: Topic, key: str, record: Tick | ConfigApplied, data: bytes) -> None:
        for partition in range(self._partitions if topic.partitions == "events" else 1):
            self._write(topic, partition, key, record, data)
        await self._ask()

    def _answer(self, batch: TrainingBatch) -> None:
        """Tell the curriculum what became of a batch, and of those that it cuts for that: in a loop, not in depth."""
        if RUN_LOG.name not in self._following:
            return
        self._unanswered.append(batch)
        if len(self._unanswered) > 1:
            return
        while self._unanswered:
            outcome = self._recorded.answer(self._unanswered[0], self.last_tick)
            if outcome is not None:
                self._write(RUN_LOG, 0, outcome.run_id, outcome, encode(outcome))
            self._unanswered.popleft()

    def _write_held(self) -> None:
        for reader in self._readers:
            for topic, partition, key, data in reader.held:
                self._append(topic, partition, key, data)
            reader.held.clear()

    def _forget(self, records: int) -> None:
        self._touched += records
        if self._touched >= FORGET_EVERY:
            self._touched = 0
            for reader in self._readers:
                for state in reader.states:
                    state.forget_touched()

    # What goes no further

    def _is_excluded(self, partition: int, incoming: Incoming) -> bool:
        """Say whether a record is of a forgotten episode; the first of each leaves a drop."""
        record = incoming.record
        ids = (getattr(record, "episode_id", None), getattr(record, "root_episode_id", None))
        if not self._excluded.intersection(ids):
            return False
        if ids[0] not in self._told_excluded:
            self._told_excluded.add(str(ids[0]))
            state = self._first[0].states[partition]
            drop = Drop(
                unit="episode",
                unit_id=str(ids[0]),
                reason=DropReason.EXCLUDED.value,
                stage=self._first[0].name,
                detail="on the list of exclusions",
                dropped_at_ms=state.clock.now_ms,
            )
            self._emit(self._first[0], partition, Outgoing(DROPS, drop.unit_id, drop))
        return True

    def _dead_letter(self, reader: Reader, raw: RawRecord, place: Partition, error: RecordError) -> None:
        letter = dead_letter(raw, place, error, stage=reader.name, app_version=self._app_version)
        reader.dead_letters += 1
        data = encode(letter)
        reader.count(place.partition, DEAD_LETTERS.name, "", letter, data)
        self._hold_letter(reader, raw.key, data)

    def _hold_letter(self, reader: Reader, key: bytes | None, data: bytes) -> None:
        reader.held.append((DEAD_LETTERS, 0, key, data))
