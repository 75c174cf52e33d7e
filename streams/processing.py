"""Records of one partition to what one transaction writes: outputs, changelog rows, dead letters. No Kafka here.

Bytes that cannot be read become dead letters and the rest goes on. Any other error is left to the caller, who
throws this object away and restores the state: after an error it may be half changed.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rollbus.schemas import chunks
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.drops import DeadLetter
from rollbus.schemas.errors import RecordError, RecordTooLargeError, UndecodableError
from rollbus.schemas.topics import DEAD_LETTERS
from rollbus.schemas.trajectories import Location
from rollbus.streams.batch import Partition, RawRecord
from rollbus.streams.stage import EffectsStage, Incoming, Outgoing

logger = logging.getLogger(__name__)

OWN_ROWS = b"\x1f"
"""First byte of the changelog keys that belong to the runtime and not to the stage's tables."""
MAX_ERROR_CHARACTERS = 2_000


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


class StagePartition:
    """A stage at work on one partition, with that partition's state."""

    def __init__(self, stage: EffectsStage[Any, Any], partition: Partition, *, app_version: str) -> None:
        self._stage = stage
        self._partition = partition
        self._app_version = app_version
        self.state = stage.new_state()

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Apply one row of the stage's changelog."""
        self.state.restore(key, value)

    async def process(self, records: Sequence[RawRecord]) -> Processed:
        """Decode, ask, step and encode; raises whatever the stage raises."""
        result = Processed()
        incoming = [item for raw in records if (item := self._read(raw, result)) is not None]
        answers = await self._stage.answer(self.state, incoming)
        for item, answer in zip(incoming, answers, strict=True):
            for outgoing in self._stage.step(self.state, item, answer):
                self._write(outgoing, item, result)
        result.changelog = self.state.drain()
        return result

    def _read(self, raw: RawRecord, result: Processed) -> Incoming | None:
        location = Location(topic=self._partition.topic, partition=self._partition.partition, offset=raw.offset)
        try:
            if raw.value is None:
                raise UndecodableError("the record has no value; events are never deleted by key")
            key = raw.key.decode() if raw.key is not None else ""
            return Incoming(decode(raw.value), key, location, raw.value)
        except UnicodeDecodeError as error:
            self._dead_letter(raw.offset, raw.timestamp, raw.key, raw.value, UndecodableError(f"key: {error}"), result)
        except RecordError as error:
            self._dead_letter(raw.offset, raw.timestamp, raw.key, raw.value, error, result)
        return None

    def _write(self, outgoing: Outgoing, cause: Incoming, result: Processed) -> None:
        result.outgoing += 1
        key = outgoing.key.encode()
        try:
            frames = chunks.split(encode(outgoing.record))
        except RecordTooLargeError as error:
            described = RecordTooLargeError(f"{type(outgoing.record).__name__} for {outgoing.topic.name}: {error}")
            self._dead_letter(cause.location.offset, 0, key, None, described, result)
            return
        topic = outgoing.topic.name
        result.outputs.extend(Encoded(topic, key, frame) for frame in frames)

    def _dead_letter(
        self, offset: int, timestamp: int, key: bytes | None, value: bytes | None, error: RecordError, result: Processed
    ) -> None:
        letter = DeadLetter(
            topic=self._partition.topic,
            partition=self._partition.partition,
            offset=offset,
            timestamp_ms=timestamp,
            key=key,
            value=value,
            stage=self._stage.name,
            error_class=type(error).__name__,
            message=str(error)[:MAX_ERROR_CHARACTERS],
            app_version=self._app_version,
        )
        logger.warning(
            "dead letter topic=%s partition=%d offset=%d stage=%s error=%s",
            *self._partition,
            offset,
            self._stage.name,
            letter.error_class,
        )
        result.dead_letters += 1
        result.outputs.extend(Encoded(DEAD_LETTERS.name, key, frame) for frame in chunks.split(encode(letter)))
