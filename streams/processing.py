"""Records of one partition to what one transaction writes: outputs, changelog rows, dead letters. No Kafka here.

What cannot be read, or that the stage refuses with a RecordError, becomes a dead letter, and the rest goes on. Any
other error is left to the caller, who throws this object away and restores the state: it may be half changed.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rollbus.schemas import chunks
from rollbus.schemas.attempts import attempt_of
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.control import Tick
from rollbus.schemas.drops import DeadLetter
from rollbus.schemas.errors import RecordError, UndecodableError
from rollbus.schemas.making import maker
from rollbus.schemas.soundness import check_sound
from rollbus.schemas.topics import DEAD_LETTERS
from rollbus.schemas.trajectories import Location
from rollbus.streams.batch import Partition, RawRecord
from rollbus.streams.large_rows import LargeRows
from rollbus.streams.stage import EffectsStage, Incoming, Outgoing, PureAsEffects

logger = logging.getLogger(__name__)

_incoming, _location = maker(Incoming), maker(Location)

OWN_ROWS = b"\x1f"
"""First byte of the changelog keys that belong to the runtime and not to the stage's tables."""
MAX_ERROR_CHARACTERS = 2_000
MAX_KEPT_BYTES = 200_000_000
"""Of a record in chunks; a dead letter is one too, and not much larger ones can be split."""
MAX_LETTER_KEY_BYTES = 10_000
"""Of the key that a dead letter is written under, beside a whole chunk; the letter itself keeps all of the key."""
YIELD_EVERY = 200
"""Records after which other partitions get their turn: their transactions have deadlines."""
CACHED = 50
"""Records that a pure stage reads before it steps through them: so many are still in the processor's cache then."""

Refused = tuple[RawRecord, RecordError, Incoming | None]
"""A record that the stage cannot take, why, and the whole that it ended where it came in chunks."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A record as it goes to a topic, named without namespace."""

    topic: str
    key: bytes | None
    value: bytes


@dataclass(slots=True)
class Processed:
    """What a batch of records came to."""

    outputs: list[Encoded] = field(default_factory=list)
    changelog: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    dead_letters: int = 0
    outgoing: int = 0
    """Records that the stage emitted, before they were split into chunks."""
    forgotten: int = 0
    """Keys that the state has given up for newer ones, since it was opened."""
    quiet: bool = False
    """True where nothing but time has passed: ticks, of which nothing followed."""


class StagePartition:
    """A stage at work on one partition, with that partition's state."""

    def __init__(self, stage: EffectsStage[Any, Any], partition: Partition, *, app_version: str) -> None:
        self._stage = stage
        self._partition = partition
        self._app_version = app_version
        self._restored = 0
        self._asking = False
        self._large = LargeRows()
        self.state = stage.new_state()

    @property
    def activity(self) -> int:
        """A number that changes while work goes on that moves no position: rows are restored, answers come."""
        return self._restored + (getattr(self._stage, "answered", 0) if self._asking else 0)

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Apply one row of the stage's changelog."""
        self._restored += 1
        if (row := self._large.restored(key, value)) is not None:
            self.state.restore(*row)

    def unfinished(self) -> list[bytes]:
        """Return the keys of rows of which parts are missing, once the whole changelog was restored."""
        return self._large.unfinished()

    async def process(self, records: Sequence[RawRecord], *, hold_quiet: bool = False) -> Processed:
        """Decode, ask, step and encode; raises whatever the stage raises except RecordError.

        Where nothing but time has passed, `hold_quiet` leaves the changelog rows for a later call.
        """
        result, refused = Processed(quiet=True), list[Refused]()
        at_once = CACHED if isinstance(self._stage, PureAsEffects) else max(1, len(records))
        for first in range(0, len(records), at_once):
            await self._take_in(records[first : first + at_once], result, refused)
        for raw, refusal, whole in sorted(refused, key=lambda each: each[0].offset):  # not as the batch's bounds had it
            self._dead_letter(raw, refusal, whole, result)
        result.forgotten = self.state.forgotten
        result.quiet = result.quiet and not result.outputs
        if not (hold_quiet and result.quiet):
            result.changelog = self._large.split_all(self.state.drain())
        return result

    async def _take_in(self, records: Sequence[RawRecord], result: Processed, refused: list[Refused]) -> None:
        read = []
        for number, raw in enumerate(records):
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)
            try:
                read.append((raw, read_record(raw, self._partition)))
            except RecordError as error:
                refused.append((raw, error, None))
        answers = await self._answers([incoming for _, incoming in read])
        for number, ((raw, incoming), answer) in enumerate(zip(read, answers, strict=True)):
            if number % YIELD_EVERY == YIELD_EVERY - 1:  # reading has just let the others have theirs
                await asyncio.sleep(0)
            try:
                outputs = self._stage.step(self.state, incoming, answer)
            except RecordError as error:
                refused.append((raw, error, self.state.refuse(incoming.record)))
                continue
            for outgoing in outputs:
                try:
                    self._write(outgoing, result)
                except RecordError as error:  # the others of this step still go out
                    refused.append((raw, error, self.state.refuse(incoming.record)))
        result.quiet = result.quiet and all(type(incoming.record) is Tick for _, incoming in read)

    async def _answers(self, incoming: Sequence[Incoming]) -> Sequence[Any]:
        self._asking = True
        try:
            return await self._stage.answer(self.state, incoming)
        finally:
            self._asking = False

    def _write(self, outgoing: Outgoing, result: Processed) -> None:
        key, topic = outgoing.key.encode(), outgoing.topic.name
        frames = chunks.split(encode(outgoing.record))
        result.outgoing += 1
        result.outputs.extend(Encoded(topic, key, frame) for frame in frames)

    def _dead_letter(self, raw: RawRecord, error: RecordError, whole: Incoming | None, result: Processed) -> None:
        stage, version = self._stage.name, self._app_version
        letter = dead_letter(raw, self._partition, error, stage=stage, app_version=version, whole=whole)
        result.dead_letters += 1
        key = raw.key and raw.key[:MAX_LETTER_KEY_BYTES]
        result.outputs.extend(Encoded(DEAD_LETTERS.name, key, frame) for frame in chunks.split(encode(letter)))


def read_record(raw: RawRecord, partition: Partition) -> Incoming:
    """Return a fetched record as a stage takes it; raises RecordError."""
    if raw.value is None:
        raise UndecodableError("the record has no value; events are never deleted by key")
    record = chunks.parse(raw.value) if chunks.is_chunk(raw.value) else decode(raw.value)
    try:
        key = raw.key.decode() if raw.key is not None else ""
    except UnicodeDecodeError as error:
        raise UndecodableError(f"the key is not UTF-8: {error}") from error
    check_sound(record)
    return _incoming(record, key, _location(*partition, raw.offset), raw.value)


def dead_letter(
    raw: RawRecord,
    partition: Partition,
    error: RecordError,
    *,
    stage: str,
    app_version: str,
    whole: Incoming | None = None,
) -> DeadLetter:
    """Return what is kept of a record that a stage cannot take, and log it.

    Of one that came in chunks, where `raw` is the last, that is the whole record, unless it is larger than any letter;
    it stands where its first chunk stands.
    """
    topic, number = partition
    message, value, offset = str(error)[:MAX_ERROR_CHARACTERS], raw.value, raw.offset
    if whole is not None:
        offset = whole.location.offset
        message += f"; it came in chunks, the last at offset {raw.offset}"
        value = whole.data if len(whole.data) <= MAX_KEPT_BYTES else value
    letter = DeadLetter(
        topic=topic,
        partition=number,
        offset=offset,
        timestamp_ms=raw.timestamp,
        key=raw.key,
        value=value,
        stage=stage,
        error_class=type(error).__name__,
        message=message,
        attempt=attempt_of(getattr(raw, "headers", ())),
        app_version=app_version,
    )
    place = (stage, topic, number, offset, letter.error_class)
    logger.warning("dead letter stage=%s topic=%s partition=%d offset=%d error=%s", *place)
    return letter
