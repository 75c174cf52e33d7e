"""Some partitions of the first input, decided in a process of their own: recorded records in, what was made out.

Between two ticks no partition of the events knows of another, so each may be read, decoded, assembled, encoded and
hashed anywhere. `Lane` does that for its partitions; `join_lanes` puts what several lanes made into the order in which
one process would have made it: by (tick, partition, offset). The bytes do not depend on the number of lanes.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollbus.schemas.records.trajectories import Trajectory
from rollbus.schemas.topics import DEAD_LETTERS, Topic
from rollbus.streams.replay.decide.chain import Chain
from rollbus.streams.replay.decide.digest import NOWHERE, value_of
from rollbus.streams.replay.decide.reader import Reader
from rollbus.streams.replay.decide.rounds import Piece, Round, Source, merge_sources
from rollbus.streams.replay.decide.stage_output import StageOutput, read_header_fields
from rollbus.streams.stages.scoring.answers import ComponentAnswer
from rollbus.streams.stages.scoring.header import make_header

LOOK_AT_ROWS = 64
"""Rounds between two looks at how much is open."""
Answers = dict[str, ComponentAnswer]
AskAll = Callable[[Sequence[Trajectory]], Awaitable[Sequence[Answers]]]
"""Trajectories to what the reward functions say of each."""


@dataclass(frozen=True, slots=True)
class MadePiece:
    """What was made of a piece."""

    partition: int
    outputs: Sequence[StageOutput]

    def size(self) -> int:
        """Return about how many bytes it is."""
        return _size(self.outputs)


@dataclass(frozen=True, slots=True)
class MadeRound:
    """A tick, and what was made of it by partition."""

    number: int
    data: bytes
    outputs: tuple[tuple[int, Sequence[StageOutput]], ...]
    open_rows: int | None = None
    """How many rows the states hold; None if they were not counted."""

    def size(self) -> int:
        """Return about how many bytes it is."""
        return len(self.data) + sum(_size(outputs) for _, outputs in self.outputs)


@dataclass(frozen=True, slots=True)
class MadeAll:
    """The end: what each stage of the first input counted, and its digests by partition."""

    counts: tuple[tuple[int, int, int], ...]
    """Records in, records out and dead letters, by stage."""
    digests: tuple[dict[int, bytes], ...]
    """By stage, partition to digest."""
    open_rows: int

    def size(self) -> int:
        """Return nothing: it is small, and nothing follows it."""
        return 0


Message = MadePiece | MadeRound | MadeAll


def _size(outputs: Sequence[StageOutput]) -> int:
    return sum(len(output.data) for output in outputs)


class Lane(Chain):
    """The first input's stages alone; what they make is collected."""

    async def run(
        self, sources: Sequence[Source], *, with_headers: bool = False, ask_all: AskAll | None = None
    ) -> AsyncIterator[Message]:
        """Read the sources to their ends.

        `with_headers` adds to each trajectory the header of its score; `ask_all` adds its answers, too.
        """
        self._with_headers, self._ask_all = with_headers or ask_all is not None, ask_all
        self._outputs: list[StageOutput] = []
        self._trajectories: list[tuple[int, Trajectory]] = []
        """Those among the outputs, with their index there."""
        async for part in merge_sources(sources, self._signer_of):
            if isinstance(part, Piece):
                await self.piece(part.partition, part.records)
                yield MadePiece(part.partition, await self._take_outputs())
            else:
                yield await self._round(part)
        yield self._all([source.partition for source in sources])

    async def _round(self, whole_round: Round) -> MadeRound:
        outputs = []
        for partition, raw in whole_round.at:  # one after the other, so that it is known which made what
            await self.round(Round(whole_round.tick, whole_round.data, ((partition, raw),)))
            outputs.append((partition, await self._take_outputs()))
        rows = self.open_rows() if whole_round.tick.number % LOOK_AT_ROWS == 0 else None
        return MadeRound(whole_round.tick.number, whole_round.data, tuple(outputs), rows)

    def _all(self, partitions: Sequence[int]) -> MadeAll:
        counts = tuple((reader.records_in, reader.records_out, reader.dead_letters) for reader in self._readers)
        digests = tuple({number: value_of(reader.digests[number]) for number in partitions} for reader in self._readers)
        return MadeAll(counts, digests, self.open_rows())

    async def _take_outputs(self) -> list[StageOutput]:
        outputs, trajectories, self._outputs, self._trajectories = self._outputs, self._trajectories, [], []
        answers: Sequence[Answers | None] = [None] * len(trajectories)
        if self._ask_all is not None and trajectories:
            answers = await self._ask_all([trajectory for _, trajectory in trajectories])
        for (index, trajectory), answers_by_name in zip(trajectories, answers, strict=True):
            answer_rows = None
            if answers_by_name is not None:
                answer_rows = tuple(
                    (name, answer.value, answer.error, answer.turns) for name, answer in answers_by_name.items()
                )
            header_fields = read_header_fields(make_header(trajectory, NOWHERE))
            outputs[index] = outputs[index]._replace(header_fields=header_fields, answers=answer_rows)
        return outputs

    def _route_output(self, reader: Reader, topic: Topic, name: str, record: Any, data: bytes) -> None:
        if self._with_headers and isinstance(record, Trajectory):
            self._trajectories.append((len(self._outputs), record))
        self._outputs.append(StageOutput(self._readers.index(reader), topic.name, name.encode(), data))

    def _hold_letter(self, reader: Reader, key: bytes | None, data: bytes) -> None:
        self._outputs.append(StageOutput(self._readers.index(reader), DEAD_LETTERS.name, key, data))


class Messages(Protocol):
    """What one lane made, in its order."""

    @property
    def partitions(self) -> Sequence[int]:
        """Whose records it made."""
        ...

    async def read(self) -> Message:
        """Return the next message; after `MadeAll` nothing is asked for."""
        ...


@dataclass(slots=True)
class _Ahead:
    """A lane and its next message."""

    lane: Messages
    message: Message

    async def go_on(self) -> Message:
        message, self.message = self.message, await self.lane.read()
        return message


async def join_lanes(lanes: Sequence[Messages]) -> AsyncIterator[MadePiece | MadeRound | MadeAll]:
    """Yield what the lanes made as if one had made it; at the end what each counted."""
    aheads = [_Ahead(lane, await lane.read()) for lane in lanes]
    owners = {partition: ahead for ahead in aheads for partition in ahead.lane.partitions}
    turn = sorted(owners)
    while True:
        for partition in turn:
            owner = owners[partition]
            while isinstance(owner.message, MadePiece) and owner.message.partition == partition:
                yield owner.message
                await owner.go_on()
        rounds = [(ahead, ahead.message) for ahead in aheads if isinstance(ahead.message, MadeRound)]
        if not rounds:
            break
        number = min(made_round.number for _, made_round in rounds)
        now = [(ahead, made_round) for ahead, made_round in rounds if made_round.number == number]
        yield _one_round(number, [made_round for _, made_round in now])
        turn = sorted(partition for _, made_round in now for partition, _ in made_round.outputs)
        for ahead, _ in now:
            await ahead.go_on()
    for ahead in aheads:
        assert isinstance(ahead.message, MadeAll), f"partitions {ahead.lane.partitions} are out of turn"
        yield ahead.message


def _one_round(number: int, rounds: Sequence[MadeRound]) -> MadeRound:
    first = min(rounds, key=lambda made_round: made_round.outputs[0][0])
    outputs = tuple(sorted((pair for made_round in rounds for pair in made_round.outputs), key=lambda pair: pair[0]))
    rows = (
        None
        if any(made_round.open_rows is None for made_round in rounds)
        else sum(made_round.open_rows or 0 for made_round in rounds)
    )
    return MadeRound(number, first.data, outputs, rows)


@dataclass(slots=True)
class Elsewhere:
    """The first input's stages as seen from the process that puts everything in order."""

    readers: list[Reader] = field(default_factory=list)
    open_rows: int = 0

    def take(self, totals: MadeAll) -> None:
        """Add what one lane counted."""
        self.open_rows += totals.open_rows
        for reader, counts, digests in zip(self.readers, totals.counts, totals.digests, strict=True):
            reader.records_in += counts[0]
            reader.records_out += counts[1]
            reader.dead_letters += counts[2]
            for partition, digest in digests.items():
                reader.digests[partition] = digest
