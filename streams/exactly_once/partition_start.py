"""Where reading of an input partition begins: last owner fenced, partition claimed, log compared with the position.

The order matters: fencing settles what the last owner had open, so that the committed offset is read after it.
"""

import logging
from dataclasses import dataclass
from typing import Any, Protocol

from rollbus.runtime.kafka.positions import find_difference
from rollbus.runtime.kafka.shared_reading import SharedReading
from rollbus.runtime.log_mark import LogId, LogMark
from rollbus.schemas.errors import ConfigurationError, DataLossError
from rollbus.streams.exactly_once import claims
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.exactly_once.claims import Committed
from rollbus.streams.exactly_once.transaction import ProducerSession
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics import partitions_of

logger = logging.getLogger(__name__)

ACCEPT_LOSS = "`rollbus worker accept-loss"


class Host(Protocol):
    """What a runner needs from the consumer that fetches for it."""

    async def committed(self, partition: Partition) -> Committed | None:
        """Return the group's committed offset and whose it is, asked of the broker now."""
        ...

    async def claim(self, partition: Partition, claimed: Committed) -> None:
        """Commit a claim; raises CommitFailedError if the partition was assigned again since."""
        ...

    async def require_member(self) -> None:
        """Raise CommitFailedError if the broker has assigned the group's partitions again since."""
        ...

    async def bounds(self, partition: Partition) -> tuple[int, int]:
        """Return the first offset that still exists and the one after the last."""
        ...

    async def log_id(self, partition: Partition) -> LogId:
        """Return which log the partition's topic is."""
        ...

    async def seek(self, partition: Partition, offset: int) -> None:
        """Fetch from this offset on; batches handed over from now on start there."""
        ...

    def pause(self, partition: Partition) -> None:
        """Hand over nothing more of this partition for now."""
        ...

    def resume(self, partition: Partition) -> None:
        """Hand over batches of this partition."""
        ...


@dataclass(frozen=True, slots=True)
class Beginning:
    """How one input partition of a stage is opened."""

    host: Host
    partition: Partition
    group: str
    stage: str
    """Its name."""
    reading: SharedReading

    async def take_over(self, session: ProducerSession) -> Committed | None:
        """Fence the last owner, claim the partition, and return what was committed; raises CommitFailedError.

        Fencing also waits until the commits of the last owner can be read. Each session claims again under the same id:
        a successor may have fenced the session before it without having claimed the partition yet.
        """
        fenced = {"", session.id}
        while (committed := await self.host.committed(self.partition)) is not None and committed.owner not in fenced:
            await self.host.require_member()  # a member of an old generation must not fence its successors
            await session.fence(committed.owner)
            fenced.add(committed.owner)
        first, _ = await self.host.bounds(self.partition)
        await self.host.claim(self.partition, claims.claim(committed, session.id, first=first))
        return committed

    async def require_same_log(self, committed: int | None, mark: LogMark | None) -> LogMark:
        """Return the mark to go on with; raises DataLossError if the position is of another log."""
        log = await self.host.log_id(self.partition)
        where = f"{self.partition.topic}[{self.partition.partition}]"
        if committed is None:
            return LogMark(*log)
        if mark is None:
            logger.info("position %d of %s has no mark yet; its topic id is %s", committed, where, log.topic_id)
            return LogMark(*log)
        if (difference := await find_difference(self.reading, self.partition, mark, log)) is not None:
            raise DataLossError(
                f"{where} is not the log that group {self.group} has read up to {committed}: {difference}. "
                f"{ACCEPT_LOSS} {self.stage}` shows what is lost, and with --yes lets the stage go on"
            )
        return mark

    async def require_records_exist(self, committed: int | None) -> int:
        """Return the offset to continue from; raises DataLossError if its records no longer exist."""
        first, end = await self.host.bounds(self.partition)
        where = f"{self.partition.topic}[{self.partition.partition}]"
        if committed is None:
            if first > 0:
                logger.warning("group %s starts %s at %d; older records are gone", self.group, where, first)
            return first
        if first > committed:
            raise DataLossError(
                f"{where}: records {committed} … {first - 1} were deleted by retention before group {self.group} "
                f"read them; raise `retention_hours`, and continue without them by {ACCEPT_LOSS} {self.stage}`"
            )
        if end < committed:
            raise DataLossError(
                f"{where} ends at {end}, but group {self.group} has committed {committed}: the topic was truncated "
                f"or created again; {ACCEPT_LOSS} {self.stage}` reads it from its beginning"
            )
        return committed


def require_known_partition(stage: Any, partition: Partition, settings: StreamSettings) -> None:
    """Refuse a partition that was added later: it has no changelog, and keys now go to other partitions."""
    count = partitions_of(stage.input, settings)
    if partition.partition >= count:
        raise ConfigurationError(
            f"{partition.topic} was given more than its {count} partitions: keys would move; see `rollbus topics check`"
        )
