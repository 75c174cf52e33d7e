"""What an operator can do to the topics under a running or stopped worker: noticed, named, and nothing goes astray."""

import asyncio
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from click.testing import CliRunner

from rollbus.cli.root import rollbus
from rollbus.schemas.errors import DataLossError
from rollbus.schemas.topics import EPISODE_EVENTS, TRAJECTORIES, Topic
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import describe_topics
from tests.faults.conftest import NewWorker
from tests.faults.episodes import Traffic
from tests.services.streams.fixtures import send

pytestmark = [pytest.mark.services, pytest.mark.faults]


@pytest.mark.parametrize("topic", [EPISODE_EVENTS, TRAJECTORIES], ids=lambda topic: topic.name)
async def test_a_worker_ends_before_it_routes_by_added_partitions(
    topic: Topic, settings: StreamSettings, traffic: Traffic, workers: NewWorker
) -> None:
    worker = workers(settings)
    await worker.start()
    await traffic.send(range(5))
    await traffic.until_trained()
    name = topic.full_name(settings.namespace)
    admin = AIOKafkaAdminClient(**settings.kafka.client_options())
    await admin.start()
    try:
        await admin.create_partitions({name: NewPartitions(total_count=4)})
    finally:
        await admin.close()
    assert await worker.ended() == 1
    assert f"{name} has 4 partitions, not 3" in worker.log() or f"{name} was given more" in worker.log()
    await traffic.check()  # what it wrote until then is whole


async def test_retention_that_overtakes_a_stopped_worker_must_be_accepted(
    settings: StreamSettings, traffic: Traffic, workers: NewWorker, tmp_path: Path
) -> None:
    worker = workers(settings)
    await worker.start()
    await traffic.send(range(3))
    await traffic.until_trained()
    await worker.kill()
    await Traffic(settings).send(range(100, 103))
    first = await expire(settings)
    refusing = workers(settings)
    await refusing.start()
    assert await refusing.ended() == 1
    assert "were deleted by retention before group" in refusing.log()
    assert f"{settings.namespace}episode-events" in refusing.log()
    config = tmp_path / "rollbus.yaml"
    server = settings.kafka.bootstrap_servers
    config.write_text(
        f"namespace: {settings.namespace}\nkafka: {{bootstrap_servers: '{server}'}}\nworker: {{event_partitions: 3}}\n"
    )

    async def cli(*arguments: str) -> str:
        result = await asyncio.to_thread(
            CliRunner().invoke, rollbus, ["-c", str(config), *arguments], env={"COLUMNS": "200"}
        )
        assert result.exit_code == 0, result.output
        return result.output

    question = await cli("worker", "accept-loss", "assembly")
    assert "would continue without records" in question
    assert "Nothing was changed" in question
    output = await cli("worker", "accept-loss", "--yes", "assembly", "alias")
    for partition, offset in first.items():
        assert f"assembly: episode-events[{partition}] continues without records" in output
        assert f"… {offset - 1}" in output
    assert "alias: nothing is lost" in output
    assert "DataLossError" in await cli("dead-letters", "list")
    after = Traffic(settings)
    last = workers(settings)
    await last.start()
    await after.send(range(200, 203))
    await after.until_trained()


async def expire(settings: StreamSettings) -> dict[int, int]:
    """Let the broker's own retention delete all events, and put it right again; return the first offsets."""
    name = EPISODE_EVENTS.full_name(settings.namespace)
    admin = AIOKafkaAdminClient(**settings.kafka.client_options())
    await admin.start()
    retention_ms = str(settings.retention_hours * 3_600_000)
    limit = str(settings.kafka.max_message_bytes)
    common = {"cleanup.policy": "delete", "max.message.bytes": limit, "message.timestamp.type": "LogAppendTime"}

    async def configure(**changes: str) -> None:
        values = common | {key.replace("_", "."): value for key, value in changes.items()}
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, configs=values)])

    try:
        ends = {topic.name: topic.end_offsets for topic in await describe_topics(settings)}[name]
        await configure(retention_ms="1", segment_ms="100")
        async with asyncio.timeout(60):
            while True:
                await send(settings, EPISODE_EVENTS.name, [(f"k{n}".encode(), b"filler") for n in range(30)])
                try:
                    firsts = {topic.name: topic.first_offsets for topic in await describe_topics(settings)}[name]
                except DataLossError:  # retention has passed under the look itself, which asks to look again
                    continue
                if all(first >= end for first, end in zip(firsts, ends, strict=True)):
                    break
                await asyncio.sleep(1.0)
        await configure(retention_ms=retention_ms)
        firsts = {topic.name: topic.first_offsets for topic in await describe_topics(settings)}[name]
        return dict(enumerate(firsts))
    finally:
        await admin.close()
