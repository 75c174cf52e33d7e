"""The local broker keeps what was committed over a restart."""

import asyncio
from pathlib import Path

import pytest

from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.topics import DROPS
from tests.services.brokers import own_broker, running_broker
from tests.services.clickhouse.sink_fixtures import create_topics, late_drops, send
from tests.services.streams.fixtures import read_topic, stream_settings
from tests.waiting import until_found

pytestmark = pytest.mark.services


def test_records_survive_a_restart_on_other_ports(tmp_path: Path, namespace: str) -> None:
    async def fill(settings: SinkSettings) -> None:
        await create_topics(settings)
        await send(settings, late_drops(0, 3))

    with running_broker(own_broker(tmp_path)) as address:
        asyncio.run(fill(SinkSettings(kafka=KafkaConnection(bootstrap_servers=address), namespace=namespace)))
    with running_broker(own_broker(tmp_path)) as address:
        settings = stream_settings(address, namespace)
        drops = asyncio.run(
            until_found(lambda: read_topic(settings, DROPS.name), "no record is there after the restart")
        )
    assert [drop.unit_id for drop in drops] == ["late-0", "late-1", "late-2"]
