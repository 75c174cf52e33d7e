"""A shadow's configuration into live: ConfigApplied in every partition of the stages' inputs, in one transaction.

From its place in the log on, live does what the shadow did; nothing is restarted, and a replay does so there too.
"""

from collections.abc import Iterable, Sequence

from aiokafka.errors import KafkaError

from rollbus.schemas.codec import encode
from rollbus.schemas.config import RunConfig, ScoringConfig
from rollbus.schemas.control import ConfigApplied
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.replays import ReplayManifest
from rollbus.schemas.topics import CONFIGURED
from rollbus.streams.output_kafka import Row, new_producer, stop_producer, write
from rollbus.streams.rewards.registry import Registry, check
from rollbus.streams.settings import StreamSettings
from rollbus.streams.topics import partitions_of

WRITER_ID = "promote"


async def promote(
    settings: StreamSettings, manifest: ReplayManifest, registry: Registry, runs: Sequence[RunConfig]
) -> list[str]:
    """Put what a replay did otherwise into effect; return its stages. Raises ConfigurationError, UnavailableError.

    `runs` are live's, as the workers are started with.
    """
    records = [
        ConfigApplied(stage=one.stage, run_id=one.run_id, config_hash=one.config_hash, content=one.content)
        for one in manifest.overrides
    ]
    if not records:
        raise ConfigurationError(f"replay {manifest.name!r} did nothing otherwise; there is nothing to promote")
    check_workers(records, registry, runs)
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


def check_workers(records: Iterable[ConfigApplied], registry: Registry, runs: Iterable[RunConfig]) -> None:
    """Raise ConfigurationError for what the workers of these runs cannot do.

    They would stop at a reward function that they do not have. A run without rewards over groups has no group-scoring
    stage; closed groups sent there would wait for ever.
    """
    judged = {run.run_id for run in runs if run.grouping.rewards}
    for record in records:
        if record.stage == "scoring":
            check(registry, ScoringConfig.model_validate_json(record.content).rewards, "trajectory")
        elif record.stage == "grouping":
            rewards = RunConfig.model_validate_json(record.content).grouping.rewards
            check(registry, rewards, "group")
            if rewards and record.run_id not in judged:
                raise ConfigurationError(
                    f"run {record.run_id} has no grouping.rewards in live's settings, so no worker would judge the "
                    f"closed groups for {', '.join(reward.name for reward in rewards)}, and none would be trained; "
                    "set it in the settings and restart the workers"
                )


def _rows(settings: StreamSettings, record: ConfigApplied) -> list[Row]:
    data = encode(record)
    return [
        Row(topic.full_name(settings.namespace), partition, None, data)
        for topic in CONFIGURED[record.stage]
        for partition in range(partitions_of(topic, settings))
    ]
