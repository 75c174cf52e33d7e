"""A shadow's configuration into live: ConfigApplied in every partition of the stages' inputs, in one transaction.

From its place in the log on, live does what the shadow did; nothing is restarted, and a replay does so there too.
"""

from aiokafka.errors import KafkaError

from rollbus.schemas.codec import encode
from rollbus.schemas.config import ScoringConfig
from rollbus.schemas.control import ConfigApplied
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.replays import ReplayManifest
from rollbus.schemas.topics import CONFIGURED
from rollbus.streams.output_kafka import Row, new_producer, stop_producer, write
from rollbus.streams.rewards.registry import Registry, check
from rollbus.streams.settings import StreamSettings
from rollbus.streams.topics import partitions_of

WRITER_ID = "promote"


async def promote(settings: StreamSettings, manifest: ReplayManifest, registry: Registry) -> list[str]:
    """Put what a replay did otherwise into effect; return its stages. Raises ConfigurationError, UnavailableError."""
    records = [
        ConfigApplied(stage=one.stage, run_id=one.run_id, config_hash=one.config_hash, content=one.content)
        for one in manifest.overrides
    ]
    if not records:
        raise ConfigurationError(f"replay {manifest.name!r} did nothing otherwise; there is nothing to promote")
    for record in records:
        if record.stage == "scoring":  # a worker would stop at a function that it does not have
            check(registry, ScoringConfig.model_validate_json(record.content).rewards, "trajectory")
    producer = new_producer(settings, f"{settings.namespace}{WRITER_ID}")
    try:
        await producer.start()
        await producer.begin_transaction()
        await write(producer, [row for record in records for row in _rows(settings, record)])
        await producer.commit_transaction()
    except (KafkaError, OSError) as error:
        raise settings.kafka.unavailable(error) from error
    finally:
        await stop_producer(producer)
    return [f"{record.stage}.{record.run_id}" if record.run_id else record.stage for record in records]


def _rows(settings: StreamSettings, record: ConfigApplied) -> list[Row]:
    data = encode(record)
    return [
        Row(topic.full_name(settings.namespace), partition, None, data)
        for topic in CONFIGURED[record.stage]
        for partition in range(partitions_of(topic, settings))
    ]
