"""Replays whose first stages run in several lanes, all in this process; what is made travels as it does between two."""

import pickle
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from rollbus.schemas.codec import decode
from rollbus.streams.pipeline import AnyStage
from rollbus.streams.replay.decide.chain import Chain
from rollbus.streams.replay.decide.lane import Elsewhere, Lane, MadePiece, MadeRound, Message, join_lanes
from rollbus.streams.replay.decide.output import CountingOutput
from rollbus.streams.replay.decide.reader import Reader
from tests.flow.in_memory import by_checksum
from tests.streams.replay.memory import Frames, ListSource, MemoryOutput

NAMES: dict[str, Any] = {"partition_of": by_checksum, "source_namespace": "", "namespace": "replay."}


@dataclass(slots=True)
class MemoryLane:
    """What one lane made."""

    partitions: Sequence[int]
    messages: AsyncIterator[Message]

    async def read(self) -> Message:
        message: Message = pickle.loads(pickle.dumps(await anext(self.messages)))
        return message


async def replayed_in_lanes(
    stages: Sequence[AnyStage],
    sources: Sequence[ListSource],
    *,
    partitions: int,
    lanes: int,
    with_headers: bool = True,
    ask_all: Any = None,
    lane_options: dict[str, Any] | None = None,
    output: MemoryOutput | None = None,
    **options: Any,
) -> tuple[Chain, Frames]:
    """Run the stages as so many lanes and one that puts in order; return the chain at its end and what it wrote."""
    first = [stage for stage in stages if stage.input is stages[0].input]
    running = []
    for number in range(lanes):
        lane_sources = [source for source in sources if source.partition % lanes == number]
        lane = Lane(first, partitions=partitions, output=CountingOutput(), **NAMES, **(lane_options or {}))
        messages = lane.run(lane_sources, with_headers=with_headers, ask_all=ask_all)
        running.append(MemoryLane([source.partition for source in lane_sources], messages))
    elsewhere = Elsewhere([Reader.of(stage, partitions, elsewhere=True) for stage in first])
    output = MemoryOutput() if output is None else output
    rest = [stage for stage in stages if stage not in first]
    chain = Chain(rest, partitions=partitions, output=output, elsewhere=elsewhere.readers, **NAMES, **options)
    await chain.open()
    async for result in join_lanes(running):
        if isinstance(result, MadePiece):
            await chain.take_piece(result.outputs)
        elif isinstance(result, MadeRound):
            await chain.take_round(decode(result.data), result.data, [outputs for _, outputs in result.outputs])
        else:
            elsewhere.take(result)
    await chain.end()
    return chain, output.frames
