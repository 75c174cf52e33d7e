"""Read and write a group's claims through a consumer: offsets with a note, bound to one generation of the group.

aiokafka's own `commit` tries again by itself, in whatever generation it has come to by then: a claim that was meant for
one assignment could be made in the next. Here one request is sent, of the generation that was asked for, or none.
"""

from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    GroupCoordinatorNotAvailableError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from aiokafka.structs import OffsetAndMetadata

from rollbus.streams.batch import Partition
from rollbus.streams.claims import Committed, parse


async def committed_offset(consumer: AIOKafkaConsumer, partition: Partition) -> Committed | None:
    """Return the group's committed offset and whose it is, asked of the broker now."""
    place = TopicPartition(*partition)
    found = (await consumer._coordinator.fetch_committed_offsets([place])).get(place)
    return None if found is None or found.offset < 0 else parse(found.offset, found.metadata)


async def claim_offset(consumer: AIOKafkaConsumer, partition: Partition, claimed: Committed, generation: int) -> None:
    """Commit a claim in a generation; raises CommitFailedError if the group has another by now."""
    coordinator = consumer._coordinator
    await coordinator.ensure_coordinator_known()
    _require(coordinator, generation)
    offset = OffsetAndMetadata(claimed.offset, claimed.note)
    try:
        await coordinator._do_commit_offsets(None, {TopicPartition(*partition): offset})
    except (IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError) as error:
        raise _other_generation(generation) from error


async def require_generation(consumer: AIOKafkaConsumer, generation: int) -> None:
    """Raise CommitFailedError if the broker has another generation of the group by now."""
    coordinator = consumer._coordinator
    await coordinator.ensure_coordinator_known()
    _require(coordinator, generation)
    if not await coordinator._do_heartbeat():
        _require(coordinator, generation)  # it forgets its own where that is not the broker's
        raise GroupCoordinatorNotAvailableError()


def _require(coordinator: Any, generation: int) -> None:
    if coordinator.generation != generation:
        raise _other_generation(generation)


def _other_generation(generation: int) -> CommitFailedError:
    return CommitFailedError(f"the group has gone on from generation {generation}")
