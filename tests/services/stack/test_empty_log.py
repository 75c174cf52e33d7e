"""A new user's lists, on a broker where nothing has happened: they say so, and what would make something happen."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from click.testing import CliRunner

from rollbus.cli.root import rollbus
from rollbus.runtime.kafka.clients import new_admin, new_producer, running
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.log_id import read_log_ids
from rollbus.runtime.kafka.positions import Position
from rollbus.runtime.log_mark import LogMark
from rollbus.schemas.topics import EPISODE_EVENTS
from rollbus.settings import Settings
from rollbus.settings_file import load_settings
from rollbus.streams.exactly_once.changelog import position_row
from rollbus.streams.kafka.names import changelog_topic
from rollbus.streams.kafka.topics_on_broker import delete_topics
from tests.builders import make_step
from tests.console import without_settings
from tests.services.clickhouse.sink_fixtures import encode_records, late_drops, run_until_written, send
from tests.services.commands import say_in_thread, say_installed, write_config
from tests.services.streams.fixtures import commit_offsets

pytestmark = pytest.mark.services

Say = Callable[..., str]
READERS = {
    "trainer accept-loss": ("batches", "trainer.main"),
    "resample accept-loss": ("resample-requests", "resample-agent.main"),
    "log-to accept-loss webhook": ("policy-decisions", "logger.webhook"),
}
"""Of each reader its topic and its consumer group."""


@pytest.fixture
def say(kafka: str, namespace: str, tmp_path: Path) -> Say:
    config = tmp_path / "rollbus.yaml"
    config.write_text(
        f"namespace: {namespace}\nkafka: {{bootstrap_servers: '{kafka}'}}\n"
        "runs: [{run_id: main, resample: {attempts_per_hour: 5}}]\n"
    )

    def run(*arguments: str, expect: int = 0) -> str:
        result = CliRunner().invoke(rollbus, ["-c", str(config), *arguments], env={"COLUMNS": "200"})
        assert result.exit_code == expect, result.output
        return without_settings(result.output)

    return run


def test_lists_of_an_empty_log_name_what_makes_the_missing_records(say: Say, namespace: str) -> None:
    say("topics", "create")
    expected = {
        ("replay", "list"): (f"no replay of '{namespace}' yet", "rollbus replay --from"),
        ("policy", "list"): ("model 'agent' has no version yet", "rollbus trainer run"),
        ("trainer", "steps"): ("run 'main' has closed no step yet", "rollbus trainer run"),
        ("dead-letters", "list"): (f"no dead letter in '{namespace}'", "rollbus sql run dead-letters-by-class"),
    }
    for command, (missing, remedy) in expected.items():
        output = say(*command)
        assert output.startswith(missing)
        assert remedy in output
        assert len(output.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "topic"),
    [
        ("replay list", "replays"),
        ("replay show a", "replays"),
        ("replay compare live a", "replays"),
        ("replay load a", "replays"),
        ("replay delete a", "replays"),
        ("replay promote a", "replays"),
        ("replay shadow --reward feedback --as a", "replays"),
        ("policy list", "policy-versions"),
        ("policy show 1", "policy-versions"),
        ("trainer status", "training-steps"),
        ("trainer steps", "training-steps"),
        ("trainer show 1", "training-steps"),
        ("policy promote 3 --reason a", "policy-versions"),
        ("policy rollback 3 --reason a", "policy-versions"),
        ("policy compare 1 2", "evaluations"),
        ("policy evaluate 1", "evaluations"),
        ("run list", "run-log"),
        ("run pause main", "run-log"),
        ("run end-window main", "run-log"),
        ("resample run json:dumps", "resample-requests"),
        ("dead-letters list", "dead-letters"),
        ("dead-letters show a:0:0", "dead-letters"),
        ("dead-letters reinject --all", "dead-letters"),
        ("log-to wandb --mode offline", "training-steps"),
        ("forget --episode a --dry-run", "exclusions"),
        ("forget --again", "exclusions"),
        ("topics list", "episode-events"),
        ("sink status", "episode-events"),
        ("trainer accept-loss", "batches"),
        ("resample accept-loss", "resample-requests"),
        ("log-to accept-loss webhook", "policy-decisions"),
    ],
)
def test_a_namespace_without_topics_is_named_with_the_creating_command(
    say: Say, namespace: str, command: str, topic: str
) -> None:
    output = say(*command.split(), expect=1)
    assert f"there is no topic {namespace}{topic} at" in output
    assert "`rollbus topics create`" in output
    assert len(output.splitlines()) == 1


@pytest.mark.parametrize("command", ["trainer accept-loss", "resample accept-loss", "log-to accept-loss wandb"])
def test_a_reader_that_has_lost_nothing_is_left_as_it_is(say: Say, command: str) -> None:
    say("topics", "create")
    for words in (command, f"{command} --yes"):
        assert "nothing is lost, and nothing was changed" in say(*words.split())


def test_a_reader_of_another_log_continues_once_its_loss_is_accepted(say: Say, kafka: str, namespace: str) -> None:
    say("topics", "create")
    for command, (topic, reader) in READERS.items():
        place = TopicPartition(f"{namespace}{topic}", 0)
        of_another_log = Position(0, LogMark("there", "made-before")).committed
        connection = KafkaConnection(bootstrap_servers=kafka)
        asyncio.run(commit_offsets(connection, f"{namespace}{reader}", {place: of_another_log}))
        output = say(*command.split())
        assert f"{place.topic}[0] would continue at 0: the topic was deleted and made again" in output
        assert "Nothing was changed" in output
        assert "continues at 0" in say(*command.split(), "--yes")
        assert "nothing is lost, and nothing was changed" in say(*command.split())


async def test_readers_of_recreated_topics_continue_once_their_loss_is_accepted(
    kafka: str, clickhouse: tuple[str, int], namespace: str, tmp_path: Path
) -> None:
    """Kafka drops the offsets of a topic with it: what a reader has written elsewhere shows that it had some."""
    host, port = clickhouse
    table = {"host": host, "port": port, "database": f"made_again_{namespace[2:-1]}"}
    config = write_config(tmp_path, kafka, namespace, clickhouse=table, worker={"event_partitions": 1})
    settings = load_settings(Settings, config, {})
    stream, sink = settings.stream_settings(), settings.sink_settings()
    await say_in_thread(config, "topics", "create")
    await send(sink, [*late_drops(0, 3), *encode_records([("training-steps", "main", make_step(1))])])
    await run_until_written(sink)
    events = EPISODE_EVENTS.full_name(namespace)
    async with running(stream.kafka, new_admin(stream.kafka)) as admin:
        mark = LogMark(*(await read_log_ids(admin, [events]))[events])
    async with running(stream.kafka, new_producer(stream.kafka)) as producer:
        key, value = position_row(0, mark)
        await producer.send_and_wait(changelog_topic(namespace, "assembly"), value, key=key, partition=0)
    made_again = {"worker accept-loss assembly": "episode-events", "trainer accept-loss": "batches"}
    made_again["sink accept-loss"] = "drops"
    await delete_topics(stream, {f"{namespace}{topic}" for topic in made_again.values()})
    await say_in_thread(config, "topics", "create")
    for command, topic in made_again.items():
        output = await say_in_thread(config, *command.split())
        assert f"{topic}[0] would continue at 0: " in output
        assert "the topic was deleted and made again" in output
        assert "Nothing was changed" in output
    accepted = await asyncio.gather(*(say_installed(config, f"{command} --yes") for command in made_again))
    assert all(output.count("[0] continues at 0: ") == 1 for output in accepted)
    for command in made_again:
        assert "nothing is lost, and nothing was changed" in await say_in_thread(config, *command.split())


def test_an_origin_without_a_letter_is_not_a_success(say: Say) -> None:
    say("topics", "create")
    assert "no dead letter of scores:0:1; see" in say("dead-letters", "reinject", "scores:0:1", expect=1)
    assert "no such dead letter" in say("dead-letters", "reinject", "--all")


def test_an_absent_log_does_not_give_an_empty_archive(say: Say, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    assert "there is no topic of" in say("archive", "run", "--at", str(place), expect=1)
    assert not place.exists()
