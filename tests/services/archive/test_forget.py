"""`rollbus forget` on a real broker and ClickHouse's engine: nothing that goes on from here knows of the person."""

import asyncio
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rollbus.consumers.clickhouse.maintain.forget import TABLES, delete_rows, find_attempts
from rollbus.consumers.clickhouse.questions.saved_questions import ask
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import migrate
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.hosted_stages import all_stages
from rollbus.schemas.codec import encode
from rollbus.schemas.ids import trajectory_id
from rollbus.schemas.records.drops import DeadLetter, Drop
from rollbus.schemas.records.steps import StepCompleted, TrainedMember
from rollbus.schemas.topics import BATCHES, EPISODE_EVENTS, TRAINING_STEPS
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.streams.replay.kafka.live_topics import read_exclusions
from rollbus.trainer.ledger.log_kafka import KafkaTrainerLog
from tests.builders import START_MS, make_alias, make_alias_reward, make_episode, make_score, make_tick, make_trajectory
from tests.consumers.story import Record
from tests.services.clickhouse.test_queries import write
from tests.services.commands import say
from tests.services.replay.live import records, settings_of, write_settings
from tests.services.stack.health_world import make_world, send_records, states
from tests.services.streams.fixtures import send
from tests.trainer.scenario import make_batch
from tests.waiting import wait_until

pytestmark = pytest.mark.services

LABELS = {
    "ann": {"user": "ann"},
    "bob": {"user": "bob's \\ friend"},
    "again": {"resampled_from": trajectory_id("bob")},
}
STEP = StepCompleted(run_id="main", model="agent", step=1, batch_hash="b", batch_number=0, base_version=0,
                     policy_version=1, started_at_ms=0, completed_at_ms=0,
                     trained=(TrainedMember(trajectory_id=trajectory_id("ann"), group_id="g", lag=0, advantage=1.0,
                                            sampled_tokens=2),))  # fmt: skip


def test_a_person_is_forgotten_everywhere(
    kafka: str, namespace: str, clickhouse: tuple[str, int], tmp_path: Path
) -> None:
    database = namespace.strip(".").replace("-", "_")
    path = write_settings(tmp_path, kafka, namespace,
                          clickhouse={"host": clickhouse[0], "port": clickhouse[1], "database": database})  # fmt: skip
    settings = settings_of(path)
    stream = settings.stream_settings()
    migrate(settings.clickhouse)

    async def fill() -> None:
        await ensure_topics(stream, all_stages(settings))
        events = [
            episode_event
            for name, labels in LABELS.items()
            for episode_event in make_episode(name, start={"labels": labels})
        ]
        items = [(event.root_episode_id.encode(), encode(event)) for event in events]
        await send(stream, EPISODE_EVENTS.name, [*items, (None, encode(make_tick(0)))])
        await send(stream, BATCHES.name, [(b"main", encode(make_batch(0, (), batch_hash=STEP.batch_hash)))])
        await send(stream, TRAINING_STEPS.name, [(b"main", encode(STEP))])
        client = ClickHouse(settings.clickhouse)
        kept_records: list[Any] = [make_trajectory(name, labels=labels) for name, labels in LABELS.items()]
        kept_records += [make_score(trajectory_id(name), episode_id=name) for name in LABELS]
        write(client, namespace, [("t", "", event) for event in (*events, *kept_records)])
        client.close()

    run = partial(say, path)

    def rows_about(name: str) -> int:
        return sum(
            int(ask(settings.clickhouse, f"SELECT count() FROM {table} WHERE episode_id = '{name}'").rows[0][0])
            for table in TABLES
        )

    def exported_episodes(name: str) -> set[str]:
        """Whose trajectories an export writes."""
        run("export", "trajectories", str(tmp_path / name), "--run", "main", "--format", "jsonl")
        texts = [file.read_text() for file in (tmp_path / name).glob("*.jsonl")]
        return {who for who in LABELS for text in texts if trajectory_id(who) in text}

    asyncio.run(fill())
    earlier = f"{namespace.strip('.')}-earlier"
    run("replay", "--from", "earliest", "--stage", "assembly", "--as", earlier)
    before = rows_about("bob")
    assert exported_episodes("before") == set(LABELS)
    assert "1 episode in 1 conversation" in run("forget", "--label", "user=ann", "--dry-run")
    assert rows_about("ann") == before > 8
    mistyped = run("forget", "--label", "user=Ann", expect=1)
    assert "no episode has the label user=Ann" in mistyped
    assert "no episode has the label user=," in run("forget", "--label", "user=", expect=1), "none has it, not all"
    assert "removed" not in mistyped, "it would look as if somebody had been forgotten"
    output = run("forget", "--label", "user=ann")
    assert "1 are on the list of exclusions" in output
    assert "the sink has not written" in output, "none runs"
    assert "the weights still know them" in output
    assert "0 are on the list of exclusions from now on; 1 were already" in run("forget", "--label", "user=ann")
    assert (rows_about("ann"), rows_about("bob")) == (0, before)
    assert exported_episodes("after") == {"bob", "again"}
    assert "rows of forgotten episodes deleted again" in run("replay", "load", earlier)
    assert rows_about("ann") == 0 < before < rows_about("bob")
    run("replay", "delete", earlier)
    assert rows_about("bob") == before

    async def look() -> tuple[set[str], set[str]]:
        log = KafkaTrainerLog(stream.kafka, namespace=namespace, run_id="main", model="agent")
        await log.open()
        try:
            refused = set(await log.excluded_episodes())
        finally:
            await log.close()
        replay_stream = stream.model_copy(update={"namespace": f"replay-{namespace.strip('.')}.{namespace}"})
        return {record.episode_id for record in await records(replay_stream, "trajectories")}, refused

    run("replay", "--from", "earliest", "--stage", "assembly", "--as", namespace.strip("."))
    assert asyncio.run(look()) == ({"bob", "again"}, {"ann"})
    assert find_attempts(settings.clickhouse, namespace, ["ann", "bob"]) == {"again": "again"}
    assert "2 episodes in 2 conversations" in run("forget", "--label", "user=bob's \\ friend")
    assert rows_about("bob") == rows_about("again") == 0


def test_what_a_slow_sink_writes_of_a_forgotten_person_is_deleted_too(
    tmp_path: Path, kafka: str, clickhouse: tuple[str, int], namespace: str
) -> None:
    with make_world(tmp_path, kafka, clickhouse, namespace, sink={"linger_ms": 4_000}) as world:
        world.rollbus("topics", "create")
        sink = world.start("sink", "sink", "run")
        world.until(lambda picture: states(picture) == {"sink": "working"}, "the sink does not start")
        database = ClickHouseSettings(host=clickhouse[0], port=clickhouse[1], database=world.database)
        events = [event for name in ("ann", "bob") for event in make_episode(name, start={"labels": {"user": name}})]
        send_records(kafka, EPISODE_EVENTS.full_name(namespace), events)
        sink.send_signal(signal.SIGSTOP)
        forgetting = world.start("forget", "forget", "--label", "user=ann")
        stream = settings_of(world.folder / "settings.yaml").stream_settings()
        wait_until(lambda: asyncio.run(read_exclusions(stream))[0], "nothing is excluded")
        sink.send_signal(signal.SIGCONT)
        assert forgetting.wait(120) == 0

        def rows_about(name: str) -> int:
            question = f"SELECT count() FROM events WHERE episode_id = '{name}' AND kind != 'Excluded'"
            return int(ask(database, question).rows[0][0])

        assert "the sink has not written" not in world.log("forget")
        wait_until(lambda: rows_about("bob") > 0, "the sink writes nothing")
        assert rows_about("ann") == 0


def test_feedback_by_alias_and_quoted_words_are_forgotten_with_a_person(
    namespace: str, clickhouse: tuple[str, int]
) -> None:
    """A row of the topic `aliases` knows of no episode: the same report is there, too, or the alias was hers."""
    database = namespace.strip(".").replace("-", "_")
    settings = ClickHouseSettings(host=clickhouse[0], port=clickhouse[1], database=database)
    migrate(settings)
    stored: list[Record] = []
    for who in LABELS:
        report = make_alias_reward(f"ticket-{who}", key="resolved", comment=f"by {who}")
        addressed = replace(report, episode_id=who, root_episode_id=who)
        unresolved = make_alias_reward(f"chat-{who}", key="too late", comment=f"by {who}")
        drop = Drop(unit="trajectory", unit_id=trajectory_id(who), reason="score_failed", stage="scoring",
                    detail=f"by {who}", dropped_at_ms=START_MS)  # fmt: skip
        letter = DeadLetter(topic="t", partition=0, offset=len(stored), timestamp_ms=START_MS, stage="assembly",
                            value=f"\0{who}\0".encode(), value_bytes=1, error_class="X", message="m")  # fmt: skip
        records_of_person = (report, addressed, unresolved, make_alias(f"chat-{who}", who), drop, letter)
        stored += [("t", "", stored_record) for stored_record in records_of_person]
    client = ClickHouse(settings)
    write(client, namespace, stored)
    write(client, "of-others.", [("t", "", make_alias_reward("ticket-ann", key="resolved", comment="by no one"))])
    client.close()
    delete_rows(settings, ["ann"])
    statement = "SELECT comment, count() FROM rewards GROUP BY comment ORDER BY comment"
    assert ask(settings, statement).rows == [("by again", 3), ("by bob", 3), ("by no one", 1)]
    assert ask(settings, "SELECT detail FROM drops ORDER BY detail").rows == [("",), ("by again",), ("by bob",)]
    assert ask(settings, "SELECT hex(value) FROM dead_letters ORDER BY value").rows == [
        (f"\0{who}\0".encode().hex().upper(),) for who in ("again", "bob")
    ]
