"""A range on its way through a replay's chain: read here, or by lanes whose work is put in order here."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

from rollbus.runtime.machine import available_memory, count_bound_cores
from rollbus.schemas.codec import decode
from rollbus.schemas.records.control import Tick
from rollbus.schemas.records.replays import ReplayRange
from rollbus.streams.replay.decide.chain import Chain
from rollbus.streams.replay.decide.lane import LOOK_AT_ROWS, Elsewhere, MadeAll, MadePiece, join_lanes
from rollbus.streams.replay.decide.reader import Reader
from rollbus.streams.replay.decide.rounds import Round, merge_sources
from rollbus.streams.replay.decide.steps import StoppedError
from rollbus.streams.replay.kafka.chain import ChainFactory
from rollbus.streams.replay.kafka.lane import LaneJob
from rollbus.streams.replay.kafka.lanes import LaneProcess
from rollbus.streams.replay.kafka.source import Progress, open_ranges
from rollbus.streams.replay.plan.processes import functions_to_take_along, lanes_for
from rollbus.streams.replay.plan.stages import first_stages

Passed = tuple[Tick, Sequence[int], int]
"""A tick, the partitions that hold it, and how many rows were open in other processes."""


@dataclass(slots=True)
class ProgressCallbacks:
    """Callbacks that report how far a replay is."""

    begin: Callable[[tuple[ReplayRange, ...]], None] = lambda ranges: None
    progress: Progress = lambda offsets, records, size: None
    """Called first with zeros, when reading begins."""
    stream_time: Callable[[int], None] = lambda ms: None


@dataclass(slots=True)
class Covered:
    """The stream time in which a range has all of its partitions: offsets begin and end each at a time of its own."""

    waiting: set[int]
    """Partitions that begin behind the log's beginning and have had no tick yet."""
    from_ms: int | None
    """Stream time of the first tick that finds every partition begun; 0 where all begin with the log."""
    last_ms: dict[int, int | None]
    """Stream time of the last tick by partition; None where it has had none yet."""

    @classmethod
    def of(cls, ranges: Iterable[ReplayRange]) -> Self:
        """Return what is known before the first record."""
        ranges = tuple(ranges)
        cut = {span.partition for span in ranges if span.from_offset}
        return cls(cut, None if cut else 0, {span.partition: None for span in ranges})

    def tick(self, stream_time_ms: int, partitions: Sequence[int]) -> None:
        """Take in a tick, and the partitions that hold it."""
        self.last_ms |= dict.fromkeys(partitions, stream_time_ms)
        if self.waiting:
            self.waiting.difference_update(partitions)
            if not self.waiting:
                self.from_ms = stream_time_ms

    @property
    def to_ms(self) -> int | None:
        """Stream time of the last tick that every partition has come to; None where one has no tick."""
        last_ms = [time_ms for time_ms in self.last_ms.values() if time_ms is not None]
        return min(last_ms) if last_ms and len(last_ms) == len(self.last_ms) else None


@dataclass(slots=True)
class RangeRun:
    """The range on its way through the chain."""

    factory: ChainFactory
    watch: ProgressCallbacks
    processes: int | None
    """None for as many as cores and memory allow."""
    first_ms: int | None = None
    """From when on every partition is in the range; 0 where it begins with the log, None where no tick says."""
    last_ms: int | None = None
    """Up to when every partition is in the range; None where no tick says."""
    open_rows: int = 0
    """Most rows that the states held at the end of a round."""

    async def run(self) -> Chain:
        """Read the range to its end, or until it is to stop; return the chain as it is there."""
        covered = Covered.of(self.factory.ranges)
        self.watch.begin(self.factory.ranges)
        lanes, elsewhere = self._lanes(), Elsewhere()
        if lanes:
            partitions, first = self.factory.settings.event_partitions, first_stages(self.factory.plan)
            elsewhere = Elsewhere([Reader.of(stage, partitions, elsewhere=True) for stage in first])
        for lane in lanes:
            self.factory.stack.push_async_callback(lane.stop)
            await lane.start()
        chain = await self.factory.chain(elsewhere.readers)
        with suppress(StoppedError):
            await chain.open()
            async for tick, at, rows in self._join_lanes(chain, lanes, elsewhere) if lanes else self._alone(chain):
                covered.tick(tick.stream_time_ms, at)
                self.watch.stream_time(tick.stream_time_ms)
                if self.factory.follow is not None:
                    await self.factory.output.flush()
                if tick.number % LOOK_AT_ROWS == 0:
                    self.open_rows = max(self.open_rows, chain.open_rows() + rows)
            if self.factory.follow is None:  # else the round is open: the next start reads on in it
                await chain.end()
        self.first_ms, self.last_ms = covered.from_ms, covered.to_ms
        self.open_rows = max(self.open_rows, chain.open_rows() + elsewhere.open_rows)
        return chain

    def _lanes(self) -> list[LaneProcess]:
        factory, plan = self.factory, self.factory.plan
        if factory.follow is not None:
            return []
        parts = lanes_for(self.processes, plan, factory.ranges, cores=count_bound_cores(), memory=available_memory())
        registry = functions_to_take_along(plan, factory.registry)
        is_as_live = plan.scores == "recorded" and plan.feedback == "recorded"  # else the rewards themselves are read
        with_headers = "scoring" in plan.stages and (registry is not None or is_as_live)
        job = LaneJob(factory.settings, plan, (), factory.excluded, with_headers, registry, factory.version)
        return [LaneProcess(replace(job, ranges=part), self.watch.progress) for part in parts]

    async def _alone(self, chain: Chain) -> AsyncIterator[Passed]:
        """Do everything here; yield each tick."""
        settings, stop = self.factory.settings, self.factory.follow
        opening = open_ranges(settings, self.factory.ranges, self.watch.progress, stop=stop)
        sources = await self.factory.stack.enter_async_context(opening)
        self.watch.progress(0, 0, 0)
        async for part in merge_sources(sources, settings.signer_of(self.factory.plan.input)):
            if isinstance(part, Round):
                await chain.round(part)
                yield part.tick, [partition for partition, _ in part.at], 0
            else:
                await chain.piece(part.partition, part.records)

    async def _join_lanes(
        self, chain: Chain, lanes: Sequence[LaneProcess], elsewhere: Elsewhere
    ) -> AsyncIterator[Passed]:
        """Put in order what lanes made; yield each tick."""
        for lane in lanes:
            await lane.ready()
        self.watch.progress(0, 0, 0)
        async for message in join_lanes(lanes):
            if isinstance(message, MadePiece):
                await chain.take_piece(message.outputs)
                await asyncio.sleep(0)  # what else is on its way goes on meanwhile
            elif isinstance(message, MadeAll):
                elsewhere.take(message)
            else:
                tick = decode(message.data)
                await chain.take_round(tick, message.data, [outputs for _, outputs in message.outputs])
                yield tick, [partition for partition, _ in message.outputs], message.open_rows or 0
