"""Positions of a consumer group that know their log: what is committed with an offset, and whether reading can go on.

Every offset is committed with a mark of its log (`log_mark`). Where reading begins, the mark is compared with the log
as it is now: the topic may have been deleted and made again, restored from a backup or moved to another cluster, and a
tool may have set the offset. A tool leaves no mark. So an offset without one is taken over once, with a line in the
log; it is refused if the group has marks elsewhere, or if a witness, which is what the reader has written elsewhere,
shows that it had one. Stages compare in the same way, by the mark in their changelog.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError
from aiokafka.structs import OffsetAndMetadata

from rollbus.runtime.kafka.clients import new_admin, new_consumer, new_producer, running
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.groups import committed_offsets, describe_groups
from rollbus.runtime.kafka.log_id import read_log_ids
from rollbus.runtime.kafka.reading import Bounds, assign_paused, open_reader, read_bounds
from rollbus.runtime.kafka.shared_reading import SharedReading
from rollbus.runtime.log_mark import AcceptedLoss, LogId, LogMark, describe_difference, find_loss, parse_note
from rollbus.schemas.codec import encode
from rollbus.schemas.errors import ConfigurationError, DataLossError
from rollbus.schemas.records.drops import DeadLetter
from rollbus.schemas.topics import DEAD_LETTERS

logger = logging.getLogger(__name__)

NO_WITNESSES: Mapping[TopicPartition, LogMark] = {}


class Position(NamedTuple):
    """Where a group goes on in a partition."""

    offset: int | None
    """None where it has committed nothing."""
    mark: LogMark
    is_adopted: bool = False
    """Whether it was committed without a mark, and is taken over now."""

    @property
    def committed(self) -> OffsetAndMetadata:
        """What is committed for it."""
        return OffsetAndMetadata(self.offset or 0, self.mark.note)


Doubt = Callable[[TopicPartition, int | None], Awaitable[str | None]]
"""Says why an offset without a mark, or a missing one, is not this reader's; None if it may be."""


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of one consumer group."""

    connection: KafkaConnection
    group: str
    accept_command: str
    """Shows a loss, and with --yes lets the reader go on."""
    passes_expired: bool = False
    """Whether the reader itself reports records that retention took before they were read."""
    doubt: Doubt | None = None

    async def open(
        self, places: Collection[TopicPartition], witnesses: Mapping[TopicPartition, LogMark] = NO_WITNESSES
    ) -> dict[TopicPartition, Position]:
        """Return where to go on; raises DataLossError that names every partition that is not the log of its position.

        `witnesses` are the newest marks that the reader has written elsewhere.
        """
        positions, losses = await self._compare(places, witnesses)
        if losses:
            raise DataLossError(
                f"group {self.group} cannot go on: "
                + "; ".join(f"{place.topic}[{place.partition}]: {loss.why}" for place, loss in sorted(losses.items()))
                + f". `{self.accept_command}` shows what is lost, and with --yes lets it go on"
            )
        return positions

    async def accept(
        self,
        places: Collection[TopicPartition],
        witnesses: Mapping[TopicPartition, LogMark] = NO_WITNESSES,
        *,
        namespace: str,
        stage: str,
        now_ms: int,
        dry_run: bool,
    ) -> dict[TopicPartition, AcceptedLoss]:
        """Let the reader go on after a loss; return what was lost. A dry run only reads.

        Each loss becomes a dead letter before the new positions are committed. Raises ConfigurationError while the
        reader runs.
        """
        positions, losses = await self._compare(places, witnesses)
        if dry_run or not losses:
            return losses
        async with running(self.connection, new_admin(self.connection), what="looking for members") as admin:
            if members := (await describe_groups(admin, [self.group]))[self.group].members:
                members_text = ", ".join(f"{member.client_id} at {member.host}" for member in members)
                raise ConfigurationError(
                    f"group {self.group} is read by {members_text}; stop it, and give the command again"
                )
        async with running(self.connection, new_producer(self.connection), what="accepting a loss") as producer:
            for place, loss in losses.items():
                letter = encode(loss_letter(place, loss, stage=stage, now_ms=now_ms))
                await producer.send_and_wait(DEAD_LETTERS.full_name(namespace), letter)
        consumer = new_consumer(self.connection, group_id=self.group)
        async with running(self.connection, consumer, what="accepting a loss"):
            accepted = {place: Position(loss.resumes_at, loss.mark) for place, loss in losses.items()}
            consumer.assign(list(places))
            await consumer.commit(to_commit(adopted_of(positions) | accepted))
        for place, loss in losses.items():
            logger.warning("group %s accepts in %s[%d]: %s", self.group, *place, loss.why)
        return losses

    async def _compare(
        self, places: Collection[TopicPartition], witnesses: Mapping[TopicPartition, LogMark]
    ) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, AcceptedLoss]]:
        activity = f"reading the positions of group {self.group}"
        async with running(self.connection, new_admin(self.connection), what=activity) as admin:
            committed = await committed_offsets(admin, self.group)
            logs = await read_log_ids(admin, {place.topic for place in places})
        async with open_reader(self.connection, activity) as reader:
            assign_paused(reader, places)
            bounds = await read_bounds(reader, places)
        has_marks = any(parse_note(entry.metadata) is not None for entry in committed.values())
        positions, losses, reading = {}, {}, SharedReading(self.connection)
        try:
            for place in places:
                now = Now(place, logs[place.topic], bounds[place], reading)
                loss = await self._find_loss(now, committed.get(place), witnesses.get(place), has_marks=has_marks)
                if isinstance(loss, Position):
                    positions[place] = loss
                else:
                    losses[place] = loss
        finally:
            await reading.close()
        return positions, losses

    async def _find_loss(
        self, now: "Now", committed: OffsetAndMetadata | None, witness: LogMark | None, *, has_marks: bool
    ) -> Position | AcceptedLoss:
        offset = committed.offset if committed is not None and committed.offset >= 0 else None
        mark = parse_note(committed.metadata) if committed is not None else None
        if witness is not None and (difference := await now.differs_from(witness, by_record=mark is None)) is not None:
            return now.from_beginning(f"{difference}; it is read from its beginning")
        if mark is None and (why := await self._doubt(now.place, offset, witness, has_marks=has_marks)) is not None:
            return now.from_beginning(why) if offset is None else now.from_offset(offset, why)
        if offset is None:
            return Position(None, LogMark(*now.log))
        if mark is None:
            where = f"{now.place.topic}[{now.place.partition}]"
            logger.info("position %d of %s has no mark yet; its topic id is %s", offset, where, now.log.topic_id)
        record = await read_marked(now.reading, now.place, mark)
        loss = find_loss(offset, mark, now.log, now.bounds, record)
        is_expired = loss is not None and loss.first <= loss.last
        if loss is not None and not (is_expired and self.passes_expired):
            return loss
        return Position(offset, mark or LogMark(*now.log), is_adopted=mark is None)

    async def _doubt(
        self, place: TopicPartition, offset: int | None, witness: LogMark | None, *, has_marks: bool
    ) -> str | None:
        """Say why a position without a mark is not the reader's."""
        if offset is not None and (witness is not None or has_marks):
            return f"a tool has set the offset to {offset}: reading goes on there"
        return await self.doubt(place, offset) if self.doubt is not None else None


class Now(NamedTuple):
    """A partition as it is now."""

    place: TopicPartition
    log: LogId
    bounds: Bounds
    reading: SharedReading

    async def differs_from(self, mark: LogMark, *, by_record: bool) -> str | None:
        """Say why it is not the log of a mark; None if it is."""
        if not by_record:
            return describe_difference(mark, self.log, None)
        return await find_difference(self.reading, self.place, mark, self.log)

    def from_beginning(self, why: str) -> AcceptedLoss:
        """Read all that there is."""
        first, _ = self.bounds
        return AcceptedLoss(why, first, first, first - 1, LogMark(*self.log), True)

    def from_offset(self, offset: int, why: str) -> AcceptedLoss:
        """Go on at an offset, or at the next one that there is."""
        first, end = self.bounds
        resumes_at = min(max(offset, first), end)
        return AcceptedLoss(why, resumes_at, resumes_at, resumes_at - 1, LogMark(*self.log))


class MarkedConsumer:
    """A subscribed consumer whose commits carry marks."""

    def __init__(self, consumer: Any, open_positions: "OpenPositions") -> None:
        self._consumer, self._open_positions = consumer, open_positions
        self._marks: dict[TopicPartition, LogMark] = {}

    async def require_same_logs(self) -> None:
        """Compare the partitions that are new in the assignment; raises DataLossError.

        Call it before records are used.
        """
        assignment = self._consumer.assignment()
        self._marks = {place: mark for place, mark in self._marks.items() if place in assignment}
        if new := sorted(assignment - self._marks.keys()):
            positions = await self._open_positions(new)
            self._marks |= {place: position.mark for place, position in positions.items()}
            await commit_marks(self._consumer, positions)

    async def commit(self, last_records: Mapping[TopicPartition, Any]) -> None:
        """Commit the position after the last record of each partition; raises what the consumer's own commit raises."""
        if missing := last_records.keys() - self._marks.keys():
            raise IllegalStateError(f"{sorted(missing)} are not assigned any more")
        marks = {place: self._marks[place].after([record]) for place, record in last_records.items()}
        await self._consumer.commit(
            {place: Position(record.offset + 1, marks[place]).committed for place, record in last_records.items()}
        )
        self._marks |= marks


def adopted_of(positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Position]:
    """Return the positions that still lack their mark: among marked ones the next start would refuse them."""
    return {place: position for place, position in positions.items() if position.is_adopted}


def to_commit(positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return positions as a consumer commits them."""
    return {place: position.committed for place, position in positions.items()}


async def commit_marks(consumer: Any, positions: Mapping[TopicPartition, Position]) -> None:
    """Commit the adopted ones of opened positions with their marks; after a rebalance they are opened again."""
    if adopted := adopted_of(positions):
        with suppress(CommitFailedError, IllegalStateError):
            await consumer.commit(to_commit(adopted))


OpenPositions = Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, Position]]]
"""Returns where to go on, such as `Positions.open`."""


async def find_difference(reading: SharedReading, place: Any, mark: LogMark, log: LogId) -> str | None:
    """Say why a partition is not of the mark's log; None if it is."""
    difference = describe_difference(mark, log, None)
    if difference is not None:
        return difference
    return describe_difference(mark, log, await read_marked(reading, place, mark))


async def read_marked(reading: SharedReading, place: Any, mark: LogMark | None) -> Any:
    """Return the record that is now at a mark's last offset; None if there is none."""
    if mark is None or mark.last_offset < 0:
        return None
    topic, number = place
    return await reading.read_one(topic, number, mark.last_offset)


def loss_letter(place: TopicPartition, loss: AcceptedLoss, *, stage: str, now_ms: int) -> DeadLetter:
    """Return the record that keeps a loss."""
    return DeadLetter(
        topic=place.topic,
        partition=place.partition,
        offset=loss.first,
        timestamp_ms=now_ms,
        stage=stage,
        error_class=DataLossError.__name__,
        message=f"{loss.why}; the loss was accepted by an operator",
    )
