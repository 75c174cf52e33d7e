"""Find a person's episodes in the log, and write their exclusion into the events and the list that replays read.

Both are in one transaction, so the list never has fewer exclusions than the stages. The list is kept for ever and holds
only ids.
"""

from collections.abc import Callable, Sequence
from contextlib import aclosing

from rollbus.runtime.kafka.clients import running
from rollbus.runtime.kafka.writing import Row, partition_of, write_transaction
from rollbus.schemas.codec import decode_if, encode
from rollbus.schemas.records.events import EpisodeStarted, Excluded
from rollbus.schemas.records.steps import StepCompleted
from rollbus.schemas.signing import OWNER
from rollbus.schemas.topics import EPISODE_EVENTS, EXCLUSIONS, TRAINING_STEPS
from rollbus.streams.exactly_once.transaction import new_producer
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics import partitions_of
from rollbus.streams.operate.forget import Search
from rollbus.streams.replay.compare.live import decode_records
from rollbus.streams.replay.kafka.live_topics import read_exclusions
from rollbus.streams.replay.kafka.source import read_whole

WRITER_ID = "forget"
EXCLUSIONS_PER_TRANSACTION = 5_000
PROGRESS_RECORDS = 1_000
"""So many records are reported at once."""


async def search_log(settings: StreamSettings, search: Search, progress: Callable[[int], None]) -> None:
    """Pass every episode start that the log still has to the search.

    `progress` receives how many records were read since its last call.
    """
    count = 0
    async with aclosing(read_whole(settings, EPISODE_EVENTS)) as raw_records:
        async for raw in raw_records:
            count += 1
            if count % PROGRESS_RECORDS == 0:
                progress(PROGRESS_RECORDS)
            if (start := decode_if(raw.value, EpisodeStarted)) is not None:
                search.add_start(start)
    progress(count % PROGRESS_RECORDS)


async def write_exclusions(settings: StreamSettings, records: Sequence[Excluded]) -> int:
    """Write those that are not on the list yet, and return how many; raises UnavailableError."""
    listed_episodes, _ = await read_exclusions(settings)
    new = [record for record in records if record.episode_id not in listed_episodes]
    async with running(settings.kafka, new_producer(settings, f"{settings.namespace}{WRITER_ID}")) as producer:
        for first in range(0, len(new), EXCLUSIONS_PER_TRANSACTION):
            rows = [
                row for record in new[first : first + EXCLUSIONS_PER_TRANSACTION] for row in _rows(settings, record)
            ]
            await write_transaction(producer, rows)
    return len(new)


async def steps_that_used(
    settings: StreamSettings, trajectory_ids: frozenset[str]
) -> dict[tuple[str, int], StepCompleted]:
    """Return the steps that trained on any of these, by run and step: the weights stay, but the report names them."""
    steps: dict[tuple[str, int], StepCompleted] = {}
    async with aclosing(decode_records(settings, TRAINING_STEPS)) as records:
        async for record in records:
            if isinstance(record, StepCompleted) and any(
                trajectory.trajectory_id in trajectory_ids for trajectory in record.trained
            ):
                steps[record.run_id, record.step] = record
    return steps


def _rows(settings: StreamSettings, record: Excluded) -> list[Row]:
    root, data, events = record.root_episode_id.encode(), encode(record), EPISODE_EVENTS.full_name(settings.namespace)
    partition = partition_of(root, partitions_of(EPISODE_EVENTS, settings))
    return [
        Row(EXCLUSIONS.full_name(settings.namespace), 0, record.episode_id.encode(), data),
        Row(events, partition, root, data, settings.signing.sign(OWNER, events, root, data)),
    ]
