"""Write an operator's commands into the run log, and read the status of every run from it.

The run's curriculum obeys in the order of the log, so a replay obeys at the same place.
"""

from contextlib import aclosing, suppress

from aiokafka import TopicPartition

from rollbus.runtime.kafka.reading import read_from
from rollbus.runtime.kafka.writing import Row, send_each
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.errors import RecordError
from rollbus.schemas.records.control import RunCommand
from rollbus.schemas.topics import BATCHES, RUN_LOG
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.operate.run_status import RunStatus, run_statuses


async def send_command(settings: StreamSettings, command: RunCommand) -> None:
    """Write a command into its run's log; raises UnavailableError."""
    row = Row(RUN_LOG.full_name(settings.namespace), 0, command.run_id.encode(), encode(command))
    await send_each(settings.kafka, [row])


async def list_runs(settings: StreamSettings) -> dict[str, RunStatus]:
    """Return the status of each run of the namespace, by run id; raises UnavailableError."""
    run_log, batches = (TopicPartition(topic.full_name(settings.namespace), 0) for topic in (RUN_LOG, BATCHES))
    pairs = []
    async with aclosing(read_from(settings.kafka, {run_log: 0, batches: 0})) as records:
        async for record in records:
            with suppress(RecordError):  # the curriculum has made a dead letter of it
                decoded = decode(record.value)
                pairs.append(((record.key or b"").decode(errors="replace"), decoded))
    return run_statuses(pairs)
