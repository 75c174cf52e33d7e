"""Recorded records of the first stage's input in, every stage's own records out. No Faust, no clock.

A round is taken piece by piece; at its end stands a tick, which the later stages have before the first ones do. What
live was told of the outside world is told again between two rounds. What happens to each record is in `steps`.

The stages of the first input may also run elsewhere, partition by partition (`lane`): a chain without them is given
what they made, in the same order, and does the rest.
"""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rollbus.schemas.chunks import Chunk
from rollbus.schemas.codec import encode
from rollbus.schemas.control import ConfigApplied, Tick
from rollbus.schemas.drops import Drop, DropReason
from rollbus.schemas.errors import RecordError
from rollbus.schemas.groups import TrainingBatch
from rollbus.schemas.replays import StageDigest
from rollbus.schemas.topics import DROPS, RUN_LOG, Topic, topic_of
from rollbus.schemas.trajectories import Location
from rollbus.streams.batch import Partition, RawRecord
from rollbus.streams.processing import read_record
from rollbus.streams.replay.left_out import LeftOut
from rollbus.streams.replay.made import Made
from rollbus.streams.replay.output import Output, Partitioner
from rollbus.streams.replay.reader import Reader
from rollbus.streams.replay.recorded import BEFORE_ALL, Change, Recorded
from rollbus.streams.replay.rounds import Round
from rollbus.streams.replay.steps import Steps
from rollbus.streams.stage import Incoming, Outgoing
from rollbus.streams.stages import AnyStage

ASK_AT_ONCE = 256
"""Records about which an effects stage is asked together."""
BeforeTick = Callable[[int], Awaitable[None]]
"""Called before a tick's records are told again: to read them."""


class Chain(Steps):
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
        stop: asyncio.Event | None = None,
    ) -> None:
        """`change` is for recorded configurations; `early` are rewards that an episode has from its first event on.

        `elsewhere` are the stages of the first input where others run them.
        """
        super().__init__(
            [*elsewhere, *(Reader.of(stage, partitions) for stage in stages)],
            partitions=partitions,
            output=output,
            partition_of=partition_of,
            namespace=namespace,
            app_version=app_version,
            stop=stop,
        )
        self._source, self._left_out, self._early = source_namespace, LeftOut(excluded), dict(early or {})
        self._recorded, self._change, self._before_tick = recorded or Recorded(), change, before_tick
        self._told_excluded: set[str] = set()
        self._unanswered: deque[TrainingBatch] = deque()
        self._piece: Sequence[RawRecord] = ()
        """What is being taken in of the first input, by offset."""
        self.last_tick = -1
        self.stream_time_ms: int | None = None

    async def open(self) -> None:
        """Tell what held when the range began, before its first record."""
        self._go_on()
        await self._tell(BEFORE_ALL)

    async def piece(self, partition: int, records: Sequence[RawRecord]) -> None:
        """Take recorded records of the first input."""
        self._go_on()
        place, first = Partition(self.input.full_name(self._source), partition), self._first
        some_left_out, asks, self._piece = bool(self._left_out), first[0].asks, records
        for raw in records:
            try:
                incoming = read_record(raw, place)
            except RecordError as error:
                for reader in first:
                    self._dead_letter(reader, raw, place, error)
                continue
            if some_left_out and self._is_left_out(partition, incoming):
                continue
            if type(incoming.record) is ConfigApplied:
                changed = self._change(incoming.record)
                if changed is None:
                    continue
                incoming = replace(incoming, record=changed, data=encode(changed))
            if self._early:
                for reward in self._early.pop(getattr(incoming.record, "episode_id", ""), ()):
                    self._hand(first, partition, reward)
            self._hand(first, partition, incoming)
            if asks and len(first[0].waiting) >= ASK_AT_ONCE:
                await self._ask(self._asked_at_once)
        await self._ask(self._asked_at_once)
        self._forget(len(records))
        await self._output.settle()

    def _as_fetched(self, incoming: Incoming) -> RawRecord:
        at = bisect_left(self._piece, incoming.location.offset, key=lambda raw: raw.offset)
        if at < len(self._piece) and self._piece[at].value == incoming.data:
            return self._piece[at]
        return super()._as_fetched(incoming)

    async def round(self, found: Round) -> None:
        """End the round before and take a tick."""
        self._go_on()
        await self._begin(found.tick, found.data)
        for partition, raw in found.at:
            place = Location(topic=self.input.full_name(self._source), partition=partition, offset=raw.offset)
            self._hand(self._first, partition, Incoming(found.tick, "", place, found.data))
        await self._ask()
        if self._left_out:
            for partition, _ in found.at:  # nothing waits to be asked about: what has begun, the states have
                waiting = (reader.states[partition].chunks.begun() for reader in self._first)
                self._left_out.keep(partition, frozenset[bytes]().union(*waiting))
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
                await self._everywhere(topic_of(name), "", tick, data)

    # Time, and what live was told

    async def _end_round(self, tick: int) -> None:
        await self._ask()
        if self._before_tick is not None:
            await self._before_tick(tick)
            self._go_on()
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

    # What goes no further

    def _is_left_out(self, partition: int, incoming: Incoming) -> bool:
        """Say whether a record is of a forgotten episode; the first of each leaves a drop."""
        episode = self._left_out.episode(partition, incoming)
        if episode is None:
            return False
        if isinstance(incoming.record, Chunk):
            for reader in self._first:
                reader.leave(partition, incoming.record)
        if episode not in self._told_excluded:
            self._told_excluded.add(episode)
            state = self._first[0].states[partition]
            drop = Drop(
                unit="episode",
                unit_id=episode,
                reason=DropReason.EXCLUDED.value,
                stage=self._first[0].name,
                detail="on the list of exclusions",
                dropped_at_ms=state.clock.now_ms,
            )
            self._emit(self._first[0], partition, Outgoing(DROPS, drop.unit_id, drop))
        return True
