"""The trainer's position in `batches`, and whether it is one that the trainer has written.

The ledger is its witness: each batch before the position is a step in it, and each step was a batch of the topic.
"""

from collections.abc import Sequence

from aiokafka import TopicPartition

from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.positions import Positions
from rollbus.schemas.codec import decode_if
from rollbus.schemas.records.groups import TrainingBatch
from rollbus.schemas.records.steps import StepCompleted, StepSkipped
from rollbus.schemas.topics import BATCHES
from rollbus.trainer.ledger.reading_kafka import read_all, read_ledger

STAGE = "trainer"


def batch_positions(
    connection: KafkaConnection, namespace: str, run_id: str, batches_from: str | None = None
) -> Positions:
    """Return the positions of a run's trainer; with `batches_from`, in the batches of a replay."""

    async def doubt(place: TopicPartition, offset: int | None) -> str | None:
        closed_batches = [
            record.batch_hash
            for record in await read_ledger(connection, namespace)
            if isinstance(record, StepCompleted | StepSkipped) and record.run_id == run_id
        ]
        if not closed_batches and offset is None:
            return None
        batches = {
            frame.offset: batch.batch_hash
            for frame in await read_all(connection, place.topic)
            if frame.key == run_id.encode() and (batch := decode_if(frame.value, TrainingBatch)) is not None
        }
        return find_doubt(offset, closed_batches, batches, is_replay=batches_from is not None)

    command = f"rollbus trainer accept-loss --run {run_id}"
    return Positions(connection, f"{namespace}{STAGE}.{run_id}", command, doubt=doubt)


def place_of_batches(namespace: str) -> TopicPartition:
    """Return the partition that a namespace's batches are in."""
    return TopicPartition(BATCHES.full_name(namespace), 0)


def find_doubt(
    offset: int | None, closed_batches: Sequence[str], batches: dict[int, str], *, is_replay: bool
) -> str | None:
    """Say why a position without a mark is not the trainer's, by the hashes of closed steps and of batches by offset.

    The steps of live batches are not in a replay.
    """
    trained_batches = set(closed_batches)
    if closed_batches and closed_batches[-1] not in batches.values() and not is_replay:
        return (
            f"it does not hold batch {closed_batches[-1]}, the last one that was trained: "
            "the topic was deleted and made again, or restored from a backup"
        )
    before = [] if offset is None else [at for at in batches if at < offset]
    skipped = [at for at in before if batches[at] not in trained_batches]
    if skipped:
        return (
            f"a tool has set the offset to {offset}, and {len(skipped)} batches before it, from offset {min(skipped)} "
            "on, were not trained"
        )
    return None
