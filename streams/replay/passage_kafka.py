"""A range on its way through a replay's chain: read here, or by lanes whose work is put in order here."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

from rollbus.schemas.codec import decode
from rollbus.schemas.control import Tick
from rollbus.schemas.replays import ReplayRange
from rollbus.streams.replay.chain import Chain
from rollbus.streams.replay.chain_kafka import Connected
from rollbus.streams.replay.lane import LOOK_AT_ROWS, Elsewhere, MadeAll, MadePiece, joined
from rollbus.streams.replay.lane_kafka import Job
from rollbus.streams.replay.lanes_kafka import LaneProcess
from rollbus.streams.replay.output import CountingOutput
from rollbus.streams.replay.processes import cores, free_memory, functions_to_take_along, lanes_for
from rollbus.streams.replay.range_kafka import reader
from rollbus.streams.replay.reader import Reader
from rollbus.streams.replay.rounds import Round, merged
from rollbus.streams.replay.source_kafka import KafkaSource, Progress, assign
from rollbus.streams.replay.stages import first_stages
from rollbus.streams.replay.steps import StoppedError
from rollbus.streams.replay.writer_kafka import KafkaOutput

Passed = tuple[Tick, Sequence[int], int]
"""A tick, the partitions in which it stands, and how many rows were open elsewhere."""


@dataclass(slots=True)
class Watch:
    """Who is told how far a replay is."""

    begin: Callable[[tuple[ReplayRange, ...]], None] = lambda ranges: None
    progress: Progress = lambda offsets, records, size: None
    """Called first with zeros, when reading begins."""
    stream_time: Callable[[int], None] = lambda ms: None


@dataclass(slots=True)
class Begun:
    """From when on a range has all of its partitions: where they begin at offsets, each does at a time of its own."""

    waiting: set[int]
    """Partitions that begin behind the log's beginning and have had no tick yet."""
    at_ms: int | None
    """Stream time of the first tick that finds every partition begun; 0 where all begin with the log."""

    @classmethod
    def of(cls, ranges: Iterable[ReplayRange]) -> Self:
        """Return what is known before the first record."""
        cut = {one.partition for one in ranges if one.from_offset}
        return cls(cut, None if cut else 0)

    def tick(self, stream_time_ms: int, partitions: Iterable[int]) -> None:
        """Take in a tick, and the partitions in which it stands."""
        if self.waiting:
            self.waiting.difference_update(partitions)
            if not self.waiting:
                self.at_ms = stream_time_ms


@dataclass(slots=True)
class Reached:
    """Up to when a range has all of its partitions: where they end at offsets, each does at a time of its own."""

    last_ms: dict[int, int | None]
    """Stream time of the last tick by partition; None where it has had none yet."""

    @classmethod
    def of(cls, ranges: Iterable[ReplayRange]) -> Self:
        """Return what is known before the first record."""
        return cls({one.partition: None for one in ranges})

    def tick(self, stream_time_ms: int, partitions: Iterable[int]) -> None:
        """Take in a tick, and the partitions in which it stands."""
        for partition in partitions:
            self.last_ms[partition] = stream_time_ms

    @property
    def at_ms(self) -> int | None:
        """Stream time of the last tick that every partition has come to; None where one has no tick."""
        known = [each for each in self.last_ms.values() if each is not None]
        return min(known) if known and len(known) == len(self.last_ms) else None


@dataclass(slots=True)
class Passage:
    """The range on its way through the chain."""

    connected: Connected
    ranges: tuple[ReplayRange, ...]
    excluded: frozenset[str]
    output: CountingOutput | KafkaOutput
    watch: Watch
    processes: int | None
    """None for as many as cores and memory allow."""
    first_ms: int | None = None
    """From when on every partition is in the range; 0 where it begins with the log, None where no tick tells."""
    last_ms: int | None = None
    """Up to when every partition is in the range; None where no tick tells."""
    open_rows: int = 0
    """Most rows that the states held at the end of a round."""

    async def go(self) -> Chain:
        """Read the range to its end, or until it is to stop; return the chain as it is there."""
        begun, reached = Begun.of(self.ranges), Reached.of(self.ranges)
        self.watch.begin(self.ranges)
        lanes, elsewhere = self._lanes(), Elsewhere()
        if lanes:
            partitions, first = self.connected.settings.event_partitions, first_stages(self.connected.plan)
            elsewhere = Elsewhere([Reader.of(each, partitions, elsewhere=True) for each in first])
        for lane in lanes:
            self.connected.stack.push_async_callback(lane.stop)
            await lane.start()
        chain = await self.connected.chain(self.ranges, self.output, self.excluded, elsewhere.readers)
        with suppress(StoppedError):
            await chain.open()
            async for tick, at, rows in self._joined(chain, lanes, elsewhere) if lanes else self._alone(chain):
                begun.tick(tick.stream_time_ms, at)
                reached.tick(tick.stream_time_ms, at)
                self.watch.stream_time(tick.stream_time_ms)
                if self.connected.follow is not None:
                    await self.output.flush()
                if tick.number % LOOK_AT_ROWS == 0:
                    self.open_rows = max(self.open_rows, chain.open_rows() + rows)
            if self.connected.follow is None:  # else the round is open: the next start reads on in it
                await chain.end()
        self.first_ms, self.last_ms = begun.at_ms, reached.at_ms
        self.open_rows = max(self.open_rows, chain.open_rows() + elsewhere.open_rows)
        return chain

    def _lanes(self) -> list[LaneProcess]:
        connected, plan = self.connected, self.connected.plan
        if connected.follow is not None:
            return []
        parts = lanes_for(self.processes, plan, self.ranges, cores=cores(), memory=free_memory())
        registry = functions_to_take_along(plan, connected.registry)
        recorded = plan.scores == "recorded" and plan.rewards == "recorded"  # else the rewards themselves are read
        heads = "scoring" in plan.stages and (registry is not None or recorded)
        job = Job(connected.settings, plan, (), self.excluded, heads, registry, connected.version)
        return [LaneProcess(replace(job, ranges=part), self.watch.progress) for part in parts]

    async def _alone(self, chain: Chain) -> AsyncIterator[Passed]:
        """Do everything here; yield each tick."""
        settings, stop = self.connected.settings, self.connected.follow
        consumer = await self.connected.stack.enter_async_context(reader(settings))
        places = assign(consumer, settings.namespace, self.ranges)
        sources = [KafkaSource(consumer, place, span, self.watch.progress, stop=stop) for span, place in places.items()]
        self.watch.progress(0, 0, 0)
        async for each in merged(sources):
            if isinstance(each, Round):
                await chain.round(each)
                yield each.tick, [partition for partition, _ in each.at], 0
            else:
                await chain.piece(each.partition, each.records)

    async def _joined(self, chain: Chain, lanes: Sequence[LaneProcess], elsewhere: Elsewhere) -> AsyncIterator[Passed]:
        """Put in order what lanes made; yield each tick."""
        for lane in lanes:
            await lane.ready()
        self.watch.progress(0, 0, 0)
        async for each in joined(lanes):
            if isinstance(each, MadePiece):
                await chain.made_piece(each.made)
                await asyncio.sleep(0)  # what else is on its way goes on meanwhile
            elif isinstance(each, MadeAll):
                elsewhere.take(each)
            else:
                tick = decode(each.data)
                await chain.made_round(tick, each.data, [made for _, made in each.made])
                yield tick, [partition for partition, _ in each.made], each.open_rows or 0
