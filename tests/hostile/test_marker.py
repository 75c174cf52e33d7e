"""A marker in every text of a person, and every byte of every data folder searched for it, before and after forgetting.

Broker, ClickHouse, worker, sink, trainer, a spool, exports and a replay: all of them real, all in one folder. `rollbus
forget` must have named each place in which the marker stays, and be right about it. (`test_text_at_rest.py` looks into
art-server's folder.)
"""

import asyncio
import dataclasses
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

import rollbus
from rollbus.consumers.clickhouse.questions.saved_questions import ask
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.hosted_stages import all_stages
from rollbus.local.clickhouse.service import clickhouse_service
from rollbus.local.kafka.service import kafka_service
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import Service, ServiceProcess
from rollbus.local.process.tether import tethered
from rollbus.runtime.kafka.clients import new_admin, running
from rollbus.schemas.errors import RejectedError
from rollbus.schemas.topics import EPISODE_EVENTS
from rollbus.settings import Settings
from rollbus.settings_file import load_settings
from rollbus.stack_settings import HOST
from rollbus.streams.kafka.names import CHANGELOG_SUFFIX
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics import topic_specs
from tests.console import ROLLBUS
from tests.hostile.byte_search import files_with, remove_replaced_parts
from tests.producers.openai_server import Server, completion
from tests.services.judges import RepeatingJudge
from tests.services.stack.test_whole_loop import Processes, running_processes
from tests.services.streams.fixtures import send
from tests.web import serve

pytestmark = pytest.mark.services

ANN, BOB = "Zq7-marker-of-ann-XJ9", "Zq7-marker-of-bob-XJ9"
GROUP_SIZE = 2
FAST_BROKER = {
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "100",
    "log.segment.delete.delay.ms": "100",
    "log.cleaner.backoff.ms": "500",
    "log.index.size.max.bytes": "65536",
}
"""Kafka looks every half second for what it can delete, instead of minutes. Each index takes 64 KiB instead of 10 MB of
zeros, which every search would read."""
HINT_JUDGE = {"type": "next_turn_judge", "name": "next", "weight": 0.0, "options": {"hint": "judge"}}
"""A judge that is only measured, but whose hints are written down."""
OUTCOMES = ("removed:", "expires by", "cannot:")
SPEED_UP = 10_000
"""The times in the changelogs' settings are divided by this."""
DEADLINE_S = 240.0


@dataclasses.dataclass(frozen=True, slots=True)
class Stack:
    folder: Path
    """Everything is below it."""
    settings: Settings
    path: Path


@pytest.fixture
def servers_to_close() -> Iterator[ExitStack]:
    """Holds the servers that must end after the stack."""
    with ExitStack() as exit_stack:
        yield exit_stack


@pytest.fixture
def stack(tmp_path: Path, namespace: str, servers_to_close: ExitStack) -> Iterator[Stack]:
    """A broker and a ClickHouse of its own."""
    kafka = kafka_service(folder=tmp_path / "kafka", client_port=find_free_port(),
                          changes=FAST_BROKER)  # fmt: skip
    port = find_free_port()
    judge_url = servers_to_close.enter_context(serve(RepeatingJudge))
    services = [
        make_process(kafka, tmp_path),
        make_process(clickhouse_service(folder=tmp_path / "clickhouse", port=port), tmp_path),
    ]
    path = tmp_path / "rollbus.yaml"
    run_section = {"run_id": "main", "grouping": {"group_size": GROUP_SIZE},
                   "batching": {"groups_per_step": 1, "max_off_policy_steps": 8}}  # fmt: skip
    path.write_text(
        yaml.safe_dump(
            {
                "namespace": namespace,
                "kafka": {"bootstrap_servers": kafka.address},
                "worker": {"event_partitions": 1, "tick_interval_ms": 200},
                "runs": [run_section],
                "scoring": {
                    "rewards": [{"type": "feedback", "name": "reward", "options": {"report": "*"}}, HINT_JUDGE]
                },
                "judge": {"base_url": f"{judge_url}/v1", "model": "judge"},
                "trainer": {"backend": {"type": "memory"}},
                "clickhouse": {"host": HOST, "port": port},
                "sink": {"linger_ms": 100},
            }
        )
    )
    try:
        for service in services:
            service.start()
        for service in services:
            service.wait_until_healthy()
        yield Stack(tmp_path, load_settings(Settings, path, {}), path)
    finally:
        for service in services:
            service.stop()


def make_process(service: Service, folder: Path) -> ServiceProcess:
    return ServiceProcess(service, log_path=folder / "logs" / f"{service.name}.log", prefix=tethered())


async def run_command(stack: Stack, *arguments: str) -> str:
    """What a command of rollbus says, one line for a row of its tables."""
    process = await asyncio.create_subprocess_exec(
        ROLLBUS, "--config", stack.path, *arguments, cwd=stack.folder, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"COLUMNS": "400"},
    )  # fmt: skip
    output, trouble = await process.communicate()
    assert process.returncode == 0, trouble.decode()
    return output.decode()


async def record_attempt(recorder: rollbus.Recorder, client: Any, marker: str, who: str, attempt: int) -> None:
    """Record an episode that has the marker wherever a text can be."""
    labels = {"user": who, "said": marker}
    async with recorder.episode(task="play", group_id=f"of-{who}", group_size=GROUP_SIZE, labels=labels) as episode:
        messages: list[Any] = [{"role": "user", "content": f"I am {marker}"}]
        await client.chat.completions.create(model="agent", messages=messages)
        episode.tool("look_up", arguments={"who": marker}, result=f"found {marker}", error=f"but {marker}")
        episode.alias(f"order-{who}-{attempt}")
        episode.reward(float(attempt), comment=f"said by {marker}")
    recorder.feedback(episode.id, signal="reply", comment=f"no, {marker}")
    recorder.feedback(episode.id, reward=0.5, name="thumbs", comment=f"thanks, {marker}")
    recorder.feedback(alias=f"order-{who}-{attempt}", reward=0.5, name="stars", comment=f"bye, {marker}")


async def record_attempts(stack: Stack) -> dict[str, str]:
    """Record two attempts for each person, one more that stays open, and one more that waits in a spool.

    Return the ids of the open episodes, by marker.
    """
    open_episode_ids = {}
    kafka, namespace = stack.settings.kafka.bootstrap_servers, stack.settings.namespace
    recorder = rollbus.init(bootstrap_servers=kafka, namespace=namespace)
    elsewhere = f"{HOST}:{find_free_port()}"
    spooling = rollbus.init(bootstrap_servers=elsewhere, namespace=namespace, spool_folder=stack.folder / "spool")
    server = Server(lambda body: completion(model="agent@0", content=f"Well, {body['messages'][0]['content']}"))
    async with server.async_client() as plain:
        client = recorder.wrap(plain, hide_injected=False)
        for who, marker in (("ann", ANN), ("bob", BOB)):
            for attempt in range(GROUP_SIZE):
                await record_attempt(recorder, client, marker, who, attempt)
            for recorder_of_kind in (spooling, recorder):
                episode = recorder_of_kind.start(task="play", labels={"user": who, "said": marker})
                episode.tool("look_up", result=marker)
                open_episode_ids[marker] = episode.id
    await asyncio.to_thread(recorder.close)
    await asyncio.to_thread(spooling.close)
    return open_episode_ids


def outcomes_in(output: str) -> dict[str, str]:
    """Outcome by place, from the table that `rollbus forget` prints."""
    rows = [re.split(r"\s{2,}", line.strip()) for line in output.splitlines()]
    return {row[0]: row[-1].split()[0].rstrip(":") for row in rows if len(row) == 3 and row[-1].startswith(OUTCOMES)}


KAFKA_HAS = ("episode-events", "aliases", "trajectories", "scores", "dead-letters", "assembly.changelog")
REMAINING_PLACES = {"spool folders of producers", "exports, outputs of finetune runs", "Kafka, replay again"}
"""What the command cannot remove."""
COUNTS = """SELECT (SELECT count() FROM step_members), (SELECT count() FROM dead_letters),
    (SELECT uniqExact(episode_id) FROM turn_rewards WHERE hint LIKE '%Zq7-marker%')"""
PLACE_OF_FOLDER = {
    "spool": "spool folders of producers",
    "exports": "exports, outputs of finetune runs",
    "logs": "logs",
    "clickhouse": "ClickHouse's tables",
}


def place_of(file: str) -> str:
    """The place, by its name in that table, to which a file belongs."""
    first, *rest = Path(file).parts
    if first != "kafka":
        return PLACE_OF_FOLDER[first]
    topic = rest[1].rpartition("-")[0].removesuffix("-delete").partition(".-")[0]
    replayed = re.match(r"replay-([\w-]+)\.", rest[1])
    return f"Kafka, replay {replayed[1]}" if replayed else f"Kafka {topic}"


async def places_with(marker: str, stack: Stack) -> set[str]:
    return {place_of(file) for file in await asyncio.to_thread(files_with, marker, stack.folder)}


def changelogs_with(marker: str, stack: Stack) -> set[str]:
    """The files of the changelogs alone: to search every place again and again takes a minute of a processor."""
    return files_with(marker, *(stack.folder / "kafka").glob(f"*/*{CHANGELOG_SUFFIX}-*"))


async def until_none(find: Callable[[], Awaitable[object]]) -> None:
    """Wait until nothing is found any more."""
    deadline = time.monotonic() + DEADLINE_S
    while remaining := await find():
        assert time.monotonic() < deadline, remaining
        await asyncio.sleep(0.5)


async def shorten_changelog_times(stream: StreamSettings, stages: Iterable[Any]) -> None:
    """Give the changelogs the settings with which rollbus makes them, their times shortened."""
    async with running(stream.kafka, new_admin(stream.kafka)) as admin:
        for spec in topic_specs(stream, stages):
            if spec.retention == "compact":
                whole = dict((*spec.config, *spec.wished))
                short = {name: str(int(value) // SPEED_UP) for name, value in whole.items() if name.endswith(".ms")}
                resource = ConfigResource(ConfigResourceType.TOPIC, spec.name, configs=whole | short)
                await admin.alter_configs([resource])


async def fill(stack: Stack, processes: Processes) -> None:
    """Let both persons be recorded, trained, stored, refused, exported and replayed."""
    open_episode_ids = await record_attempts(stack)
    junk = [f"\0 no record: {episode_id} {marker}".encode() for marker, episode_id in open_episode_ids.items()]
    await send(stack.settings.stream_settings(), EPISODE_EVENTS.name, [(b"junk", junk_bytes) for junk_bytes in junk])

    async def describe_missing() -> str:
        processes.require_alive()
        try:
            ((members, letters, hinted),) = ask(stack.settings.clickhouse, COUNTS).rows
        except RejectedError as error:  # the sink has not made its tables yet
            return str(error)
        is_all = members >= 2 * GROUP_SIZE and letters >= len(junk) and hinted == 2 * GROUP_SIZE
        return "" if is_all else f"{members=} {letters=} {hinted=}"

    await until_none(describe_missing)
    await run_command(stack, "export", "trajectories", "exports", "--tokens")
    await run_command(stack, "replay", "--from", "earliest", "--stage", "assembly", "--as", "again")


async def test_forgetting_leaves_the_marker_only_where_the_command_says(stack: Stack) -> None:
    stream = stack.settings.stream_settings()
    await run_command(stack, "topics", "create")
    async with running_processes(stack.path, stack.folder / "logs") as processes:
        await fill(stack, processes)
        before = await places_with(ANN, stack)
        at_least = (
            {f"Kafka {stream.namespace}{name}" for name in KAFKA_HAS} | REMAINING_PLACES | {"ClickHouse's tables"}
        )
        assert before >= at_least, "the search finds what is there"
        assert "logs" not in before

        dry_outcomes = outcomes_in(await run_command(stack, "forget", "--label", "user=ann", "--dry-run"))
        assert await places_with(ANN, stack) >= before, "a dry run removes nothing"
        output = await run_command(stack, "forget", "--label", "user=ann")
        outcomes = outcomes_in(output)
        assert (dry_outcomes, ANN in output) == (outcomes, False)
        assert {outcomes[place] for place in before - REMAINING_PLACES - {"ClickHouse's tables"}} == {"expires"}
        assert {outcomes[place] for place in REMAINING_PLACES} == {"cannot"}
        assert outcomes["ClickHouse's tables"] == outcomes["art-server's batch on disk"] == "removed"

        client = ClickHouse(stack.settings.clickhouse)

        async def in_clickhouse() -> set[str]:
            await asyncio.to_thread(remove_replaced_parts, client)
            return await asyncio.to_thread(files_with, ANN, stack.folder / "clickhouse")

        await until_none(in_clickhouse)
        await shorten_changelog_times(stream, all_stages(stack.settings))

        async def in_changelogs() -> set[str]:
            return await asyncio.to_thread(changelogs_with, ANN, stack)

        await until_none(in_changelogs)
    after = await places_with(ANN, stack)
    assert after <= before - {"ClickHouse's tables"}
    assert not [place for place in after if place.endswith(CHANGELOG_SUFFIX)], (
        "a marker that was removed does not come back"
    )
    assert await places_with(BOB, stack) >= at_least
