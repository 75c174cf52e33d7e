"""Recorded records of the first stage's input in, every stage's own records out. No Faust, no clock.

A round is taken piece by piece; it ends with a tick, which the later stages get before the first ones do. At its end,
stage after stage takes what was made in it, in live's order as far as live has the same, with what live recorded of the
outside world in its place. What happens to each record is in `steps`.

The stages of the first input may also run elsewhere, partition by partition (`lane`): a chain without them is given
what they made, in the same order, and does the rest.
"""

import asyncio
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush

from rollbus.schemas.codec import encode
from rollbus.schemas.errors import RecordError
from rollbus.schemas.limits import MAX_RECORD_BYTES
from rollbus.schemas.records.control import ConfigApplied, Tick
from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.records.groups import TrainingBatch
from rollbus.schemas.records.replays import StageDigest
from rollbus.schemas.records.trajectories import Location
from rollbus.schemas.signing import SignerOf
from rollbus.schemas.topics import RUN_LOG, Topic, topic_of
from rollbus.streams.exactly_once.batch import Partition, RawRecord
from rollbus.streams.exactly_once.processing import read_record, without_leap
from rollbus.streams.exactly_once.rounds import follows_early, round_of
from rollbus.streams.pipeline import AnyStage
from rollbus.streams.replay.decide.live_inputs import BEFORE_ALL, Change, LiveInputs, LiveRecord, Places
from rollbus.streams.replay.decide.output import Output, Partitioner, is_forgotten
from rollbus.streams.replay.decide.reader import Reader
from rollbus.streams.replay.decide.rounds import Round
from rollbus.streams.replay.decide.stage_output import StageOutput
from rollbus.streams.replay.decide.steps import MadeRecord, Steps
from rollbus.streams.state.stage import Incoming, make_drop

ASK_AT_ONCE = 256
"""Records about which an effects stage is asked together."""
LAST = 2**63
"""Above every offset: the place of what live does not have."""
BeforeTick = Callable[[int], Awaitable[None]]
"""Called before the records that live had before a tick are fed: to read them."""


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
        live_inputs: LiveInputs | None = None,
        change: Change = lambda record: record,
        excluded: frozenset[str] = frozenset(),
        early: Mapping[str, Sequence[Incoming]] | None = None,
        before_tick: BeforeTick | None = None,
        app_version: str = "",
        elsewhere: Sequence[Reader] = (),
        stop: asyncio.Event | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
        signer_of: SignerOf | None = None,
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
            max_record_bytes=max_record_bytes,
        )
        self._signer_of = signer_of
        self._source, self._excluded, self._early = source_namespace, excluded, dict(early or {})
        self._live_inputs, self._change, self._before_tick = live_inputs or LiveInputs(), change, before_tick
        self._reported_excluded: set[str] = set()
        self._unanswered: deque[TrainingBatch] = deque()
        self._later: dict[int, list[RawRecord]] = defaultdict(list)
        """By partition of the first input: records of later rounds."""
        self._piece: Sequence[RawRecord] = ()
        """What is being taken in of the first input, by offset."""
        self.last_tick = -1
        self.stream_time_ms: int | None = None

    async def open(self) -> None:
        """Feed what held when the range began, before its first record."""
        self._check_stop()
        await self._feed_live_records(BEFORE_ALL)

    async def piece(self, partition: int, records: Sequence[RawRecord]) -> None:
        """Take recorded records of the first input."""
        self._check_stop()
        place, first = Partition(self.input.full_name(self._source), partition), self._first
        some_left_out, asks, self._piece = bool(self._excluded), first[0].has_effects, records
        in_rounds = not self.input.is_open  # what producers write counts where it lies, whatever it says of itself
        for raw in records:
            number = round_of(raw) if in_rounds else None
            is_early = number is not None and number > self.last_tick
            if is_early or (self._later.get(partition) and follows_early(raw)):
                self._later[partition].append(raw)
                continue
            try:
                incoming = read_record(raw, place, self._max_bytes, self._signer_of)
            except RecordError as error:
                for reader in first:
                    self._dead_letter(reader, raw, place, error)
                continue
            if some_left_out and self._is_left_out(partition, incoming):
                continue
            if type(incoming.record) is ConfigApplied:
                changed_record = self._change(incoming.record)
                if changed_record is None:
                    continue
                incoming = replace(incoming, record=changed_record, data=encode(changed_record))
            if self._early:
                for reward in self._early.pop(getattr(incoming.record, "episode_id", ""), ()):
                    self._deliver(first, partition, reward)
            self._deliver(first, partition, incoming)
            if asks and len(first[0].waiting) >= ASK_AT_ONCE:
                await self._ask_waiting(self._asked_at_once)
        await self._ask_waiting(self._asked_at_once)
        self._forget_touched(len(records))
        await self._output.settle()

    def _as_fetched(self, incoming: Incoming) -> RawRecord:
        at = bisect_left(self._piece, incoming.location.offset, key=lambda raw: raw.offset)
        if at < len(self._piece) and self._piece[at].value == incoming.data:
            return self._piece[at]
        return super()._as_fetched(incoming)

    async def round(self, beginning: Round) -> None:
        """End the round before and take a tick, and the early records of the round that it begins."""
        self._check_stop()
        await self._begin_round(beginning.tick, beginning.data)
        for partition, raw in beginning.at:
            place = Location(topic=self.input.full_name(self._source), partition=partition, offset=raw.offset)
            tick = without_leap(beginning.tick, raw) if self.input.is_open else beginning.tick
            self._deliver(self._first, partition, Incoming(tick, "", place, beginning.data))
            if later := self._later.pop(partition, None):
                await self.piece(partition, later)  # those of rounds that have not come wait again
        await self._ask_waiting()
        self._forget_touched(len(beginning.at) * len(self._readers))

    async def take_piece(self, outputs: Sequence[StageOutput]) -> None:
        """Take what the first input's stages made elsewhere of a piece."""
        self._deliver_made(outputs)
        await self._ask_waiting(self._asked_at_once)
        self._forget_touched(len(outputs))
        await self._output.settle()

    async def take_round(self, tick: Tick, data: bytes, outputs: Iterable[Sequence[StageOutput]]) -> None:
        """End the round before, and take a tick and what the first input's stages made of it, by partition."""
        await self._begin_round(tick, data)
        for partition_outputs in outputs:
            self._deliver_made(partition_outputs)
        await self._ask_waiting()
        self._forget_touched(len(self._readers))

    async def end(self) -> None:
        """End the last round."""
        await self._end_round(self.last_tick + 1)
        self._write_held()
        await self._output.settle()

    def digests(self) -> tuple[StageDigest, ...]:
        """Return what each stage made, so far."""
        return tuple(reader.digest() for reader in self._readers)

    def open_rows(self) -> int:
        """Return how many rows all states hold: what a replay's memory grows with."""
        return sum(state.size() for reader in self._readers for state in reader.states)

    async def _begin_round(self, tick: Tick, data: bytes) -> None:
        """Give a tick to the later stages, before the first ones have it, since live has it in all inputs at once."""
        if tick.number > self.last_tick:
            await self._end_round(tick.number)
            self.last_tick, self.stream_time_ms = tick.number, tick.stream_time_ms
            for name in reversed(self._following):
                await self._write_everywhere(topic_of(name), "", tick, data)

    # Time, and what live recorded

    async def _end_round(self, tick: int) -> None:
        await self._ask_waiting()
        if self._before_tick is not None:
            await self._before_tick(tick)
            self._check_stop()
        for name in self._following:
            await self._take_round(name, tick)
        self._live_inputs.places.forget_until(tick - 1)
        self._write_held()
        await self._output.settle()

    async def _take_round(self, name: str, tick: int) -> None:
        """Let the stages that read a topic take what was made for it before a tick, and what live had there."""
        order = _Order(self._live_inputs.places)
        order.add_live(self._live_inputs.due(tick, name))
        order.add_made(self._waiting.get(name, ()))
        if name in self._waiting:
            self._waiting[name] = []
        while order:
            item = order.next()
            if isinstance(item, MadeRecord):
                self._write(item.topic, item.partition, item.key, item.record, item.data)
            else:
                await self._feed_live_record(item)
            order.add_live(self._live_inputs.due(tick, name))  # a batch that was just cut may have its outcome here
        await self._ask_waiting()

    async def _feed_live_records(self, tick: int) -> None:
        while due := self._live_inputs.due(tick):
            for live in due:
                await self._feed_live_record(live)

    async def _feed_live_record(self, live: LiveRecord) -> None:
        if live.topic.name not in self._following:
            return
        data = encode(live.record)
        if isinstance(live.record, ConfigApplied) and live.partition is None:
            await self._write_everywhere(live.topic, live.key, live.record, data)
        else:
            self._write(live.topic, live.partition or 0, live.key, live.record, data)
            await self._ask_waiting()

    async def _write_everywhere(self, topic: Topic, key: str, record: Tick | ConfigApplied, data: bytes) -> None:
        for partition in range(self._partitions if topic.partitions == "events" else 1):
            self._write(topic, partition, key, record, data)
        await self._ask_waiting()

    def _answer_batch(self, batch: TrainingBatch) -> None:
        """Answer a batch to the curriculum, and those that it cuts for that: in a loop, not in depth."""
        if RUN_LOG.name not in self._following:
            return
        self._unanswered.append(batch)
        if len(self._unanswered) > 1:
            return
        while self._unanswered:
            outcome = self._live_inputs.answer(self._unanswered[0], self.last_tick)
            if outcome is not None:
                self._write(RUN_LOG, 0, outcome.run_id, outcome, encode(outcome))
            self._unanswered.popleft()

    # What goes no further

    def _is_left_out(self, partition: int, incoming: Incoming) -> bool:
        """Say whether a record is of a forgotten episode; the first of each leaves a drop."""
        if not is_forgotten(incoming.record, self._excluded):
            return False
        episode = str(incoming.record.episode_id)
        if episode not in self._reported_excluded:
            self._reported_excluded.add(episode)
            state = self._first[0].states[partition]
            reason, stage, now_ms = DropReason.EXCLUDED, self._first[0].name, state.clock.now_ms
            drop = make_drop("episode", episode, reason, "on the list of exclusions", stage=stage, now_ms=now_ms)
            self._emit_output(self._first[0], partition, drop, incoming)
        return True


class _Order:
    """What is to be taken in one round of one topic: by live's offset, then in the order in which it was made."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._heap: list[tuple[int, int, MadeRecord | LiveRecord]] = []
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add_live(self, records: Iterable[LiveRecord]) -> None:
        """Add records of live; the ticker's configuration for several partitions comes after all of its round."""
        for live in records:
            in_many = live.topic.partitions == "events" and isinstance(live.record, ConfigApplied)
            self._push(LAST + 1 if in_many and live.ends_round else live.offset, live)

    def add_made(self, records: Iterable[MadeRecord]) -> None:
        """Add records of the replay's own."""
        for output in records:
            offset = self._places.find(output.topic, output.record)
            self._push(LAST if offset is None else offset, output)

    def next(self) -> MadeRecord | LiveRecord:
        """Return the next one, once."""
        return heappop(self._heap)[2]

    def _push(self, offset: int, item: MadeRecord | LiveRecord) -> None:
        self._count += 1
        heappush(self._heap, (offset, self._count, item))
