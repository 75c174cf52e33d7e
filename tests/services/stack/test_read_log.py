"""A builder that plays the log reads it from a broker: from a time on, with what was forgotten since."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.producers import init
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.records.events import Excluded
from rollbus.schemas.topics import EXCLUSIONS
from tests.services.clickhouse.sink_fixtures import create_topics, encode_records, send

pytestmark = pytest.mark.services


async def test_the_log_is_read_from_a_time_on_with_what_was_forgotten(
    kafka: str, namespace: str, tmp_path: Path
) -> None:
    # here, since every process of the tests of services would import the toolkit with the file
    from rollbus.nemo.components import LogTrajectoryBuilderConfig
    from rollbus.nemo.production.log_builder import choose_episodes, read_events

    settings = SinkSettings(kafka=KafkaConnection(bootstrap_servers=kafka), namespace=namespace)
    await create_topics(settings)
    recorder = init(bootstrap_servers=kafka, namespace=namespace, producer="shop")

    def play(task: str) -> str:
        with recorder.episode(task=task) as episode:
            pass
        return episode.id

    early = play("early")
    assert recorder.flush(60)
    await asyncio.sleep(0.01)
    since = datetime.now(UTC)
    late, person = play("late"), play("person")
    assert recorder.close(60)
    now_ms = int(since.timestamp() * 1000)
    forgotten = Excluded(
        event_id="forget-1", episode_id=person, root_episode_id=person, writer_id="operator", sequence=-1,
        occurred_at_ms=now_ms, episode_started_at_ms=now_ms,
    )  # fmt: skip
    await send(settings, encode_records([(EXCLUSIONS.name, person, forgotten)]))
    path = tmp_path / "shop.yaml"
    path.write_text(yaml.safe_dump({"kafka": {"bootstrap_servers": kafka}, "namespace": namespace}))

    async def chosen_episodes(**options: Any) -> set[str]:
        config = LogTrajectoryBuilderConfig(settings_file=path, **options)
        episodes, _ = choose_episodes(await read_events(config), config)
        return {episode.start.episode_id for episode in episodes}

    assert await chosen_episodes() == {early, late}
    assert await chosen_episodes(since=since) == {late}
    assert await chosen_episodes(until=since) == {early}
