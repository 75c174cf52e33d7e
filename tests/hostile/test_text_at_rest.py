"""After `rollbus forget`, a person's words are in no file but those that the command itself names."""

import asyncio
import contextlib
import json
import re
import subprocess
import time
from array import array
from pathlib import Path
from typing import Any

import pytest

from rollbus.cli.places import TOPIC_HOLDS, find_places
from rollbus.cli.stages import all_stages
from rollbus.consumers.clickhouse.maintain.forget import TABLES, TABLES_BY_CONTENT, TABLES_OF_IDS
from rollbus.consumers.clickhouse.questions.saved import ask
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import RECORD_TABLE, load_migrations, migrate
from rollbus.consumers.clickhouse.store.origin import Origin
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.schemas.codec import encode
from rollbus.schemas.errors import ServiceError
from rollbus.schemas.ids import trajectory_id
from rollbus.schemas.records.drops import DeadLetter, Drop
from rollbus.schemas.records.tokens import decode_token_ids
from rollbus.schemas.topics import EPISODE_EVENTS, TOPICS
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.trainer.backends.protocol import TrainRequest
from tests.builders import START_MS, make_episode, make_score, make_tick, make_trajectory
from tests.console import ROLLBUS
from tests.consumers.all_rows import rows_of
from tests.hostile.at_rest import files_with, remove_replaced_parts
from tests.services.art_fixtures import ArtServer, art_base_model, art_launcher, made_up_batch, own_art_server
from tests.services.clickhouse_guarded import Guarded, guarded
from tests.services.replay_live import settings_of, write_settings
from tests.services.stream_fixtures import send

__all__ = ["art_base_model", "art_launcher", "guarded", "own_art_server"]

MARKER = "Zq7-marker-of-ann-XJ9"


def test_every_topic_and_every_table_has_its_row() -> None:
    assert set(TOPIC_HOLDS) == {topic.name for topic in TOPICS}
    statements = [RECORD_TABLE, *(each for migration in load_migrations() for each in migration.statements)]
    tables = {found[1] for each in statements if (found := re.match(r"CREATE TABLE IF NOT EXISTS (\w+)", each))}
    assert tables == {*TABLES, *TABLES_OF_IDS, *TABLES_BY_CONTENT}


def test_every_place_says_what_becomes_of_it() -> None:
    places = list(
        find_places(namespace="shop.", retention_hours=72, replays=["r"],
                    changelogs={"shop.assembly.changelog": 0, "shop.alias.changelog": 3_600_000},
                    rows="3 rows", trained_steps=2, now_ms=START_MS, archived=("s3://b/a", "3 records"),
                    restored=["restored-march.shop."])
    )  # fmt: skip
    assert {each.outcome for each in places} == {"removed", "expires", "cannot"}
    assert all(each.why for each in places)
    assert all((each.by_ms is not None) == (each.outcome == "expires") for each in places)
    by_name = {each.name: each for each in places}
    assert by_name["Kafka shop.episode-events"].by_ms == START_MS + (72 + 168) * 3_600_000
    assert by_name["Kafka shop.run-log"].outcome == "cannot"
    assert by_name["Kafka shop.assembly.changelog"].by_ms == START_MS + 25 * 3_600_000
    assert by_name["Kafka shop.alias.changelog"].by_ms == START_MS + 26 * 3_600_000
    assert len(by_name) == len(places)


@pytest.mark.services
def test_no_byte_of_a_forgotten_person_stays_where_it_can_be_removed(
    kafka: str, namespace: str, guarded: Guarded, tmp_path: Path
) -> None:
    database = namespace.strip(".").replace("-", "_")
    own = {"port": guarded.port, "password": guarded.password, "database": database}
    path = write_settings(tmp_path, kafka, namespace, clickhouse=own)
    settings = settings_of(path)
    stream = settings.stream_settings()
    clickhouse: ClickHouseSettings = settings.clickhouse
    migrate(clickhouse)

    async def fill() -> None:
        await ensure_topics(stream, all_stages(settings))
        items = [(event.root_episode_id.encode(), encode(event)) for event in events("ann")]
        await send(stream, EPISODE_EVENTS.name, [*items, (None, encode(make_tick(0)))])

    def events(who: str) -> list[Any]:
        return make_episode(who, start={"labels": {"user": who, "said": f"{MARKER} {who}"}})

    asyncio.run(fill())
    client = ClickHouse(clickhouse)
    offset = 0
    for who in ("ann", "bob"):
        text = f"{MARKER} {who}"
        letter = DeadLetter(topic="t", partition=0, offset=0, timestamp_ms=START_MS, value=f"\0{who}\0{text}".encode(),
                            value_bytes=1, stage="assembly", error_class="X", message="m")  # fmt: skip
        drop = Drop(unit="trajectory", unit_id=trajectory_id(who), reason="score_failed", stage="scoring",
                    detail=text, dropped_at_ms=START_MS)  # fmt: skip
        records = [*events(who), make_trajectory(who, labels={"user": who, "said": text}), letter, drop,
                   make_score(trajectory_id(who), episode_id=who)]  # fmt: skip
        for record in records:
            offset += 1
            for table, row in rows_of(record, Origin(namespace, "t", 0, offset, START_MS)):
                client.insert(table, [row])
    assert files_with(f"{MARKER} ann", guarded.folder / "data"), "the search finds what is there"

    run = subprocess.run([ROLLBUS, "--config", str(path), "forget", "--label", "user=ann"], cwd=tmp_path,
                         capture_output=True, text=True, check=True)  # fmt: skip
    told = re.sub(r"\s+", " ", run.stdout)
    for topic in TOPICS:
        assert topic.full_name(namespace) in told
    assert "removed:" in told
    assert "expires by" in told
    assert "cannot:" in told
    deadline = time.monotonic() + 240
    while left := files_with(f"{MARKER} ann", guarded.folder):
        assert time.monotonic() < deadline, left
        remove_replaced_parts(client)
    assert files_with(f"{MARKER} bob", guarded.folder / "data")
    assert ask(clickhouse, "SELECT count() FROM drops").rows == [(2,)]
    assert json.dumps(MARKER) not in run.stdout


@pytest.mark.services
async def test_no_token_of_a_batch_stays_on_disk_after_its_update_or_after_a_kill(own_art_server: ArtServer) -> None:
    first, second = made_up_batch("of ann", 0), made_up_batch("of bob", 1)
    server = own_art_server
    server.start()
    client = server.client()
    await client.wait(await client.submit(first), 0.05)
    assert files_with_tokens(first, server.directory) == set()
    server.stop()
    server.start(die_at="updated")
    with contextlib.suppress(ServiceError):
        await client.submit(second)
    server.wait_until_dead()
    assert files_with_tokens(second, server.directory), "the search finds what a killed update leaves"
    server.start()
    assert files_with_tokens(second, server.directory) == set()
    await client.close()


def files_with_tokens(batch: TrainRequest, folder: Path) -> set[str]:
    """Return the files that hold a prompt of the batch, in whichever width."""
    prompts = [decode_token_ids(turn.prompt_token_ids) for one in batch.trajectories for turn in one.turns]
    runs = [array(width, ids).tobytes() for ids in prompts for width in ("i", "q")]
    texts = [", ".join(map(str, ids)).encode() for ids in prompts]
    found = set()
    for path in folder.rglob("*"):
        if path.is_file() and any(each in path.read_bytes() for each in (*runs, *texts)):
            found.add(str(path.relative_to(folder)))
    return found
