"""Records of one partition become what one transaction writes: outputs, changelog rows, dead letters. No Kafka here.

A record that cannot be read, or that the stage refuses with a RecordError, becomes a dead letter; the others go on. Any
other error reaches the caller, which throws this object away and restores the state: it may be half changed.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rollbus.schemas.codec import decode, encode
from rollbus.schemas.errors import RecordError, RecordTooLargeError, UndecodableError, UntrustedRecordError
from rollbus.schemas.limits import FRAMING_BYTES, MAX_RECORD_BYTES
from rollbus.schemas.namespaces import RESTORED
from rollbus.schemas.record_makers import maker
from rollbus.schemas.records.control import Tick, is_control
from rollbus.schemas.records.drops import DeadLetter, attempt_of, kept_bytes
from rollbus.schemas.records.trajectories import Location
from rollbus.schemas.signing import OWNER, SignerOf
from rollbus.schemas.soundness import check_sound
from rollbus.schemas.topics import DEAD_LETTERS
from rollbus.streams.exactly_once.batch import Partition, RawRecord
from rollbus.streams.exactly_once.rounds import EARLY_KEY, EarlyRecords
from rollbus.streams.state.stage import EffectsStage, Incoming, Outgoing, PureAsEffects
from rollbus.streams.state.table import NO_TICK, PartitionState
from rollbus.streams.state.too_large_records import drop_of_row, drops_instead

logger = logging.getLogger(__name__)

_incoming, _location = maker(Incoming), maker(Location)

OWN_ROWS = b"\x1f"
"""First byte of the changelog keys that belong to the runtime and not to the stage's tables."""
MAX_ERROR_CHARACTERS = 2_000
YIELD_EVERY = 200
"""After so many records other partitions get their turn: their transactions have deadlines."""
CACHED = 50
"""A pure stage reads so many records before it steps through them: they are still in the processor's cache then."""

APPEND_TIME = 1
"""Type of a record's timestamp: the broker's clock when it took the record."""
LEAP_MS = 60_000
"""How far clocks may differ."""

RefusedRecord = tuple[RawRecord, RecordError]
"""A record that the stage cannot process, and the reason."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A record as it goes to a topic, named without namespace."""

    topic: str
    key: bytes | None
    value: bytes
    signer: str | None = None
    """In whose name it is signed."""
    round: int = NO_TICK
    """Number of the tick after which it was made."""


@dataclass(slots=True)
class Processed:
    """The results of a batch of records."""

    outputs: list[Encoded] = field(default_factory=list)
    changelog: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    dead_letters: int = 0
    outgoing: int = 0
    """Records that the stage emitted; a drop counts in place of each that was too large."""
    forgotten: int = 0
    """Keys that the state forgot to make room for newer ones, since it was opened."""
    leaps: int = 0
    """Ticks from ahead of the broker's clock, which count as of its time."""
    quiet: bool = False
    """True if nothing but time has passed: only ticks, without effect."""
    tick: int | None = None
    """Number of the newest tick among the records."""


class StagePartition:
    """A stage at work on one partition, with that partition's state."""

    def __init__(
        self,
        stage: EffectsStage[Any, Any],
        partition: Partition,
        *,
        app_version: str,
        max_record_bytes: int = MAX_RECORD_BYTES,
        signer_of: SignerOf | None = None,
    ) -> None:
        self._stage = stage
        self._partition = partition
        self._app_version = app_version
        self._max_bytes, self._signer_of = max_record_bytes, signer_of
        self._restored = 0
        self._asking = False
        self._in_rounds = not stage.input.is_open  # what producers write counts where it lies, whatever its headers say
        self._takes_early = bool(getattr(stage, "takes_early", False))
        self._early = EarlyRecords()
        self._round = NO_TICK
        """Number of the last tick that the stage has taken."""
        self.state = stage.new_state()

    @property
    def activity(self) -> int:
        """A number that changes while work goes on without moving the position: rows restored, answers received."""
        return self._restored + (getattr(self._stage, "answered", 0) if self._asking else 0)

    @property
    def last_tick(self) -> int:
        """Number of the last tick that the stage has taken; NO_TICK before the first."""
        return max(self._round, int(self.state.last_tick))

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Apply one row of the stage's changelog."""
        self._restored += 1
        if key.startswith(EARLY_KEY):
            self._early.restore(key, value)
        else:
            self.state.restore(key, value)

    async def process(self, records: Sequence[RawRecord], *, hold_quiet: bool = False) -> Processed:
        """Decode, ask, step and encode; raises whatever the stage raises except RecordError.

        If nothing but time has passed, `hold_quiet` leaves the changelog rows for a later call.
        """
        result, refusals = Processed(quiet=True), list[RefusedRecord]()
        at_once = CACHED if isinstance(self._stage, PureAsEffects) else max(1, len(records))
        for first in range(0, len(records), at_once):
            await self._take_in(records[first : first + at_once], result, refusals)
        for raw, refusal in sorted(refusals, key=lambda pair: pair[0].offset):  # independent of how the batch was cut
            self._dead_letter(raw, refusal, result)
        result.forgotten = self.state.forgotten
        result.quiet = result.quiet and not result.outputs
        if not (hold_quiet and result.quiet):
            self._drain(result)
        return result

    async def _take_in(self, records: Sequence[RawRecord], result: Processed, refusals: list[RefusedRecord]) -> None:
        pieces = await self._read_in_rounds(records, result, refusals)
        answers = await self._answers([piece.incoming for piece in pieces])
        for number, (piece, answer) in enumerate(zip(pieces, answers, strict=True)):
            if number % YIELD_EVERY == YIELD_EVERY - 1:  # reading has just given the others their turn
                await asyncio.sleep(0)
            if type(piece.incoming.record) is Tick:
                self._round = max(self._round, piece.incoming.record.number)
            try:
                outputs = self._stage.step(self.state, piece.incoming, answer)
            except RecordError as error:
                refusals.append((piece.raw, error))
                continue
            for outgoing in outputs:
                try:
                    self._write(outgoing, result, max(self.last_tick, piece.round))
                except RecordError as error:  # the others of this step still go out
                    refusals.append((piece.raw, error))
        result.quiet = result.quiet and all(type(piece.incoming.record) is Tick for piece in pieces)

    async def _read_in_rounds(
        self, records: Sequence[RawRecord], result: Processed, refusals: list[RefusedRecord]
    ) -> "list[_Piece]":
        """Decode what may be taken now: early records wait, and follow the tick of their round."""
        pieces: list[_Piece] = []
        now = self.last_tick
        for number, raw in enumerate(records):
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)
            round_number = self._early.round_behind(raw) if self._in_rounds else None
            if round_number is not None and round_number > now and not self._takes_early:
                self._early.keep(raw, round_number)
                result.quiet = False
                continue
            piece = self._read(raw, round_number, result, refusals)
            if piece is None:
                continue
            pieces.append(piece)
            if type(piece.incoming.record) is Tick:
                now = max(now, piece.incoming.record.number)
                released = (self._read(early, early.round, result, refusals) for early in self._early.release(now))
                pieces += filter(None, released)
        return pieces

    def _read(
        self, raw: RawRecord, round_number: int | None, result: Processed, refusals: list[RefusedRecord]
    ) -> "_Piece | None":
        try:
            incoming = read_record(raw, self._partition, self._max_bytes, self._signer_of)
        except RecordError as error:
            refusals.append((raw, error))
            return None
        if type(incoming.record) is Tick:
            tick = incoming.record
            result.tick = tick.number if result.tick is None else max(result.tick, tick.number)
            if self._stage.input.is_open:
                incoming = replace(incoming, record=without_leap(tick, raw))
                result.leaps += incoming.record is not tick
        return _Piece(raw, incoming, NO_TICK if round_number is None else round_number)

    async def _answers(self, incoming: Sequence[Incoming]) -> Sequence[Any]:
        self._asking = True
        try:
            return await self._stage.answer(self.state, incoming)
        finally:
            self._asking = False

    def _write(self, outgoing: Outgoing, result: Processed, round_number: int) -> None:
        for out, data in encode_outputs(outgoing, self.state, self._stage.name, self._max_bytes):
            result.outgoing += 1
            result.outputs.append(Encoded(out.topic.name, out.key.encode(), data, out.signer, round_number))

    def _drain(self, result: Processed) -> None:
        """Add the touched rows; leave out a row too large for a message, which would stop the stage for good."""
        most_bytes = self._max_bytes + FRAMING_BYTES // 2
        result.changelog += self._early.drain()
        for key, value in self.state.drain():
            if value is None or (size := len(key) + len(value)) <= most_bytes:
                result.changelog.append((key, value))
            else:
                drop = drop_of_row(key, size, stage=self._stage.name, now_ms=self.state.now_ms)
                self._write(drop, result, self.last_tick)

    def _dead_letter(self, raw: RawRecord, error: RecordError, result: Processed) -> None:
        letter = dead_letter(raw, self._partition, error, stage=self._stage.name, app_version=self._app_version)
        result.dead_letters += 1
        result.outputs.append(Encoded(DEAD_LETTERS.name, letter.key, encode(letter)))


@dataclass(frozen=True, slots=True)
class _Piece:
    """A record to step through."""

    raw: RawRecord
    incoming: Incoming
    round: int
    """The one that it names; NO_TICK for none."""


def encode_outputs(out: Outgoing, state: PartitionState, stage: str, max_bytes: int) -> list[tuple[Outgoing, bytes]]:
    """Return an output with its bytes, or the drops that replace one above the limit; raises RecordError."""
    data = encode(out.record)
    size = len(data) + len(out.key)
    if size <= max_bytes:
        return [(out, data)]
    state.note_unwritten(out.record)
    return [(drop, encode(drop.record)) for drop in drops_instead(out.record, size, stage=stage, now_ms=state.now_ms)]


def read_record(
    raw: RawRecord, partition: Partition, max_bytes: int = MAX_RECORD_BYTES, signer_of: SignerOf | None = None
) -> Incoming:
    """Return a fetched record as a stage receives it; raises RecordError.

    With `signer_of`, which names the signer of a record, others than the owner may write the topic, but no control.
    """
    if raw.value is None:
        raise UndecodableError("the record has no value; events are never deleted by key")
    if len(raw.value) > max_bytes:
        raise RecordTooLargeError(f"the record has {len(raw.value)} bytes, {max_bytes} are allowed")
    record = decode(raw.value)
    try:
        key = raw.key.decode() if raw.key is not None else ""
    except UnicodeDecodeError as error:
        raise UndecodableError(f"the key is not UTF-8: {error}") from error
    check_sound(record)
    signer = None
    if signer_of is not None:
        signer = signer_of(raw)
        if signer != OWNER and is_control(record):
            raise UntrustedRecordError(
                f"{type(record).__name__} without the owner's signature; a producer may not write it"
            )
    return _incoming(record, key, _location(*partition, raw.offset), raw.value, signer, taken_ms(raw, partition.topic))


def taken_ms(raw: RawRecord, topic: str) -> int | None:
    """Return the broker's clock when it took a record; a restored topic holds what the archived one said."""
    by_broker = getattr(raw, "timestamp_type", None) == APPEND_TIME or RESTORED.match(topic) is not None
    return raw.timestamp if by_broker else None


def without_leap(tick: Tick, raw: RawRecord) -> Tick:
    """Return a tick that is at most LEAP_MS ahead of the broker's clock, if the record says what that was.

    That clock is in the log, so a replay comes to the same.
    """
    latest = raw.timestamp + LEAP_MS
    if getattr(raw, "timestamp_type", None) != APPEND_TIME or tick.stream_time_ms <= latest:
        return tick
    return replace(tick, stream_time_ms=latest)


def dead_letter(
    raw: RawRecord, partition: Partition, error: RecordError, *, stage: str, app_version: str
) -> DeadLetter:
    """Return the dead letter of a record that a stage cannot process, and log it."""
    topic, number = partition
    letter = DeadLetter(
        topic=topic,
        partition=number,
        offset=raw.offset,
        timestamp_ms=raw.timestamp,
        **kept_bytes(raw.key, raw.value),
        stage=stage,
        error_class=type(error).__name__,
        message=str(error)[:MAX_ERROR_CHARACTERS],
        attempt=attempt_of(getattr(raw, "headers", ())),
        app_version=app_version,
    )
    place = (stage, topic, number, raw.offset, letter.error_class)
    logger.warning("dead letter stage=%s topic=%s partition=%d offset=%d error=%s", *place)
    return letter
