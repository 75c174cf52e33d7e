"""What the owner writes on the page: into a real Kafka, by the sink into ClickHouse, and back onto the page."""

import asyncio
from typing import Any

import pytest

from rollbus.consumers.clickhouse.questions.saved import ask
from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.local.process.ports import find_free_port
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.errors import UnavailableError
from rollbus.ui.acting import Acting
from rollbus.ui.asking import Asking
from tests.services.clickhouse.sink_fixtures import create_topics, run_until_written, sink_settings

pytestmark = pytest.mark.services

settings = sink_settings


def member(trajectory: str, data_set: str = "gold", is_member: bool = True) -> dict[str, Any]:
    return {"data_set": data_set, "trajectory_id": trajectory, "episode_id": f"of {trajectory}", "is_member": is_member}


async def test_feedback_and_members_reach_the_tables_that_the_page_reads(settings: SinkSettings) -> None:
    await create_topics(settings)
    clock = iter(range(1_767_225_600_000, 1_767_225_700_000))
    acting = Acting(settings.kafka, settings.namespace, lambda: next(clock))
    given = {"episode_id": "e1", "value": 0.5, "name": "thumbs", "comment": "well done"}
    event_id = await asyncio.to_thread(acting.report, given)
    for change in (member("t1"), member("t2"), member("t2", is_member=False), member("t3", "other")):
        await acting.change_member(change)
    await asyncio.to_thread(acting.close)
    await run_until_written(settings)
    told = ask(settings.clickhouse, "SELECT event_id, episode_id, name, value, source, comment FROM rewards FINAL").rows
    assert told == [(event_id, "e1", "thumbs", 0.5, "operator", "well done")]
    asking = Asking(settings.clickhouse, settings.namespace)
    columns, rows = asking.ask("data_sets", {"trajectory": "t2"})
    assert columns == ["data_set", "members", "newest_change", "has_it"]
    assert sorted((name, members, has_it) for name, members, _, has_it in rows) == [("gold", 1, 0), ("other", 1, 0)]


async def test_a_kafka_that_is_away_is_named_and_nothing_is_said_to_be_written() -> None:
    port = find_free_port()
    with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}"):
        await Acting(KafkaConnection(bootstrap_servers=f"127.0.0.1:{port}"), "rollbus.").change_member(member("t1"))
