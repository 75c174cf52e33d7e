"""After `rollbus forget`, a person's words are in no file but those that the command itself names."""

import contextlib
import re
from array import array
from pathlib import Path

import pytest

from rollbus.cli.places import TOPIC_HOLDS, find_places
from rollbus.consumers.clickhouse.maintain.forget import TABLES, TABLES_BY_CONTENT, TABLES_OF_IDS
from rollbus.consumers.clickhouse.store.migrator import RECORD_TABLE, load_migrations
from rollbus.schemas.errors import ServiceError
from rollbus.schemas.records.tokens import decode_token_ids
from rollbus.schemas.topics import TOPICS
from rollbus.trainer.backends.protocol import TrainRequest
from tests.builders import START_MS
from tests.services.art.fixtures import ArtServer, art_base_model, art_launcher, made_up_batch, own_art_server

__all__ = ["art_base_model", "art_launcher", "own_art_server"]


def test_every_topic_and_every_table_has_its_row() -> None:
    assert set(TOPIC_HOLDS) == {topic.name for topic in TOPICS}
    statements = [RECORD_TABLE, *(statement for migration in load_migrations() for statement in migration.statements)]
    tables = {
        table_match[1]
        for statement in statements
        if (table_match := re.match(r"CREATE TABLE IF NOT EXISTS (\w+)", statement))
    }
    assert tables == {*TABLES, *TABLES_OF_IDS, *TABLES_BY_CONTENT}


def test_every_place_of_a_text_has_an_outcome_and_a_reason() -> None:
    places = list(
        find_places(namespace="shop.", retention_hours=72, replays=["r"],
                    changelogs={"shop.assembly.changelog": 0, "shop.alias.changelog": 3_600_000},
                    rows="3 rows", trained_steps=2, now_ms=START_MS, archived=("s3://b/a", "3 records"),
                    restored=["restored-march.shop."])
    )  # fmt: skip
    assert {place.outcome for place in places} == {"removed", "expires", "cannot"}
    assert all(place.why for place in places)
    assert all((place.by_ms is not None) == (place.outcome == "expires") for place in places)
    by_name = {place.name: place for place in places}
    assert by_name["Kafka shop.episode-events"].by_ms == START_MS + (72 + 168) * 3_600_000
    assert by_name["Kafka shop.run-log"].outcome == "cannot"
    assert by_name["Kafka shop.assembly.changelog"].by_ms == START_MS + 25 * 3_600_000
    assert by_name["Kafka shop.alias.changelog"].by_ms == START_MS + 26 * 3_600_000
    assert len(by_name) == len(places)


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
    await client.close()
    assert files_with_tokens(second, server.directory) == set()
    probe = server.directory / "probe"
    probe.write_bytes(second.trajectories[0].turns[0].prompt_token_ids)
    assert files_with_tokens(second, server.directory) == {probe.name}, "the search finds what is there"
    probe.unlink()
    server.start()
    assert files_with_tokens(second, server.directory) == set()


def files_with_tokens(batch: TrainRequest, folder: Path) -> set[str]:
    """Return the files that hold a prompt of the batch, in whichever width."""
    prompts = [
        decode_token_ids(turn.prompt_token_ids) for trajectory in batch.trajectories for turn in trajectory.turns
    ]
    runs = [array(width, ids).tobytes() for ids in prompts for width in ("i", "q")]
    texts = [", ".join(map(str, ids)).encode() for ids in prompts]
    files = set()
    for path in folder.rglob("*"):
        if path.is_file() and any(run in path.read_bytes() for run in (*runs, *texts)):
            files.add(str(path.relative_to(folder)))
    return files
