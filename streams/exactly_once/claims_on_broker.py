"""Read and write a group's claims through a consumer: offsets with a note, bound to one generation of the group.

aiokafka's own `commit` tries again by itself, in the generation that the group has by then: a claim for one assignment
could be made in the next. Here one request is sent in the generation that the caller names, or none.
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

from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.exactly_once.claims import Committed, parse


async def committed_offset(consumer: AIOKafkaConsumer, partition: Partition) -> Committed | None:
    """Ask the broker for the group's committed offset and its owner."""
    place = TopicPartition(*partition)
    committed = (await consumer._coordinator.fetch_committed_offsets([place])).get(place)
    return None if committed is None or committed.offset < 0 else parse(committed.offset, committed.metadata)


async def claim_offset(consumer: AIOKafkaConsumer, partition: Partition, claimed: Committed, generation: int) -> None:
    """Commit a claim in a generation; raises CommitFailedError if the group has another by now."""
    coordinator = consumer._coordinator
    await coordinator.ensure_coordinator_known()
    _require_generation(coordinator, generation)
    offset = OffsetAndMetadata(claimed.offset, claimed.note)
    try:
        await coordinator._do_commit_offsets(None, {TopicPartition(*partition): offset})
    except (IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError) as error:
        raise _generation_changed(generation) from error


async def require_generation(consumer: AIOKafkaConsumer, generation: int) -> None:
    """Raise CommitFailedError if the broker has another generation of the group by now."""
    coordinator = consumer._coordinator
    await coordinator.ensure_coordinator_known()
    _require_generation(coordinator, generation)
    if not await coordinator._do_heartbeat():
        _require_generation(coordinator, generation)  # the client forgets its generation if the broker has another
        raise GroupCoordinatorNotAvailableError()


def _require_generation(coordinator: Any, generation: int) -> None:
    if coordinator.generation != generation:
        raise _generation_changed(generation)


def _generation_changed(generation: int) -> CommitFailedError:
    return CommitFailedError(f"the group has gone on from generation {generation}")
