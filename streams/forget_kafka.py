"""Find a person's episodes in the log, and write their exclusion: into the events, and into the list that replays read.

Both go in one transaction, so the list never knows less than the stages do. The list is kept for ever and holds ids
alone: it is what must be remembered in order to forget.
"""

from collections.abc import Callable, Sequence
from contextlib import aclosing

from aiokafka.errors import KafkaError

from rollbus.schemas.codec import decode, encode, record_name
from rollbus.schemas.errors import RecordError
from rollbus.schemas.events import EpisodeStarted, Excluded
from rollbus.schemas.joining import Joiner
from rollbus.schemas.steps import StepCompleted
from rollbus.schemas.topics import EPISODE_EVENTS, EXCLUSIONS, TRAINING_STEPS
from rollbus.streams.forget import Search
from rollbus.streams.output_kafka import Row, new_producer, partition_of, stop_producer, write
from rollbus.streams.replay.compare_kafka import decoded
from rollbus.streams.replay.recorded_kafka import read_exclusions, read_whole
from rollbus.streams.settings import StreamSettings
from rollbus.streams.topics import partitions_of

WRITER_ID = "forget"
PORTION = 5_000
"""Exclusions of one transaction."""


async def search_log(settings: StreamSettings, search: Search, progress: Callable[[int], None]) -> None:
    """Let the search look at every episode start that the log still has; `progress` is told of records read."""
    count, joiner = 0, Joiner[None]()
    async with aclosing(read_whole(settings, EPISODE_EVENTS)) as found:
        async for raw in found:
            count += 1
            if count % 1_000 == 0:
                progress(1_000)
            try:
                data = joiner.whole(raw.value or b"", None)
                if data and record_name(data) == EpisodeStarted.__name__:
                    search.look(decode(data))
            except RecordError:
                continue  # assembly has made a dead letter of it
    progress(count % 1_000)


async def write_exclusions(settings: StreamSettings, records: Sequence[Excluded]) -> int:
    """Write those that are not on the list yet, and return how many; raises UnavailableError."""
    known, _ = await read_exclusions(settings)
    new = [record for record in records if record.episode_id not in known]
    producer = new_producer(settings, f"{settings.namespace}{WRITER_ID}")
    try:
        await producer.start()
        for first in range(0, len(new), PORTION):
            rows = [row for record in new[first : first + PORTION] for row in _rows(settings, record)]
            await producer.begin_transaction()
            await write(producer, rows)
            await producer.commit_transaction()
    except (KafkaError, OSError) as error:
        raise settings.kafka.unavailable(error) from error
    finally:
        await stop_producer(producer)
    return len(new)


async def steps_that_used(
    settings: StreamSettings, trajectory_ids: frozenset[str]
) -> dict[tuple[str, int], StepCompleted]:
    """Return the steps that trained any of these, by run and step: weights are not unlearned, but they are named."""
    found: dict[tuple[str, int], StepCompleted] = {}
    async with aclosing(decoded(settings, TRAINING_STEPS)) as records:
        async for record in records:
            if isinstance(record, StepCompleted) and any(one.trajectory_id in trajectory_ids for one in record.trained):
                found[record.run_id, record.step] = record
    return found


def _rows(settings: StreamSettings, record: Excluded) -> list[Row]:
    root, data = record.root_episode_id.encode(), encode(record)
    partition = partition_of(root, partitions_of(EPISODE_EVENTS, settings))
    return [
        Row(EXCLUSIONS.full_name(settings.namespace), 0, record.episode_id.encode(), data),
        Row(EPISODE_EVENTS.full_name(settings.namespace), partition, root, data),
    ]
