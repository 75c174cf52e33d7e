"""Recorded events on a real broker: they arrive in order, wait for a broker that is late, and survive fork and exit."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

import rollbus.producers
from rollbus.producers.sending.kafka_sink import KafkaSink
from rollbus.producers.turns.answer import AnswerChoice, ServerAnswer
from rollbus.producers.turns.sampling_settings import NEUTRAL
from rollbus.producers.turns.turn_record import Exchange
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.principals import make_principals
from rollbus.schemas import codec
from rollbus.schemas.limits import MAX_MESSAGE_BYTES
from rollbus.schemas.records.events import EpisodeEnded, ToolCalled, TurnRecorded, WriterClosed
from rollbus.schemas.topics import ALIASES, EPISODE_EVENTS, PRODUCER_REPORTS
from tests.agents.model_server import Faults, ModelServer
from tests.console import ROLLBUS
from tests.producers.sending.sink_contract import SinkContract
from tests.services.brokers import own_broker, running_broker

pytestmark = pytest.mark.services
PARTITIONS = 4
PAGES = Path(__file__).parents[3] / "docs" / "capture"


@pytest.fixture
async def topics(kafka: str, namespace: str) -> AsyncIterator[str]:
    """The namespace, with the topics that producers write."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        configs = {"max.message.bytes": str(MAX_MESSAGE_BYTES)}
        await admin.create_topics(
            [
                NewTopic(topic.full_name(namespace), PARTITIONS, 1, topic_configs=configs)
                for topic in (EPISODE_EVENTS, ALIASES, PRODUCER_REPORTS)
            ]
        )
        yield namespace
    finally:
        await admin.close()


async def read(kafka: str, topic: str, *, at_least: int) -> list[Any]:
    """Decoded records of a topic, by partition in order; fails where fewer come within two minutes."""
    records: list[Any] = []
    async with AIOKafkaConsumer(topic, bootstrap_servers=kafka, auto_offset_reset="earliest") as consumer:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            batches = await consumer.getmany(timeout_ms=200)
            for messages in batches.values():
                for message in messages:
                    assert message.value is not None
                    record = codec.decode(message.value)
                    if topic.endswith(EPISODE_EVENTS.name):
                        assert message.key == record.root_episode_id.encode()
                    records.append(record)
            if len(records) >= at_least and not batches:
                break
    assert len(records) >= at_least, f"{len(records)} of {at_least} records came"
    return records


async def test_events_arrive_in_order_under_the_root_key(kafka: str, topics: str) -> None:
    recorder = rollbus.producers.init(bootstrap_servers=kafka, namespace=topics, producer="test")
    with recorder.episode(task="t") as episode:
        for number in range(50):
            episode.tool(f"tool-{number}")
        with recorder.episode(task="child") as child:
            child.tool("inner")
        recorder.alias(episode, "order-1")
    assert recorder.flush(120)
    assert recorder.healthy
    assert recorder.close(120)

    events = await read(kafka, EPISODE_EVENTS.full_name(topics), at_least=57)
    events_of_episode = [event for event in events if event.episode_id == episode.id]
    assert [event.sequence for event in events_of_episode] == list(range(53))
    assert events_of_episode[-1].count == 52
    assert {event.root_episode_id for event in events} == {episode.id}
    (alias,) = await read(kafka, ALIASES.full_name(topics), at_least=1)
    assert alias.alias == "order-1"
    assert recorder.counters["events_delivered"] == recorder.counters["events_emitted"]
    (report,) = await read(kafka, PRODUCER_REPORTS.full_name(topics), at_least=1)
    assert report.producer == "test"


async def test_a_large_event_arrives(kafka: str, topics: str) -> None:
    recorder = rollbus.producers.init(bootstrap_servers=kafka, namespace=topics)
    result = os.urandom(10_000_000).hex()
    with recorder.episode(task="t") as episode:
        episode.tool("dump", result=result)
    assert recorder.close(120)
    events = await read(kafka, EPISODE_EVENTS.full_name(topics), at_least=4)
    (tool,) = [event for event in events if isinstance(event, ToolCalled)]
    assert tool.result == result


async def test_events_wait_for_a_broker_that_starts_late_and_goes_away(namespace: str, tmp_path: Path) -> None:
    broker = own_broker(tmp_path)
    address = broker.service.address
    recorder = rollbus.producers.init(bootstrap_servers=address, namespace=namespace)
    with recorder.episode(task="t") as episode:
        episode.tool("before any broker")
        while recorder.healthy is not False:  # noqa: ASYNC110 - another thread
            await asyncio.sleep(0.05)
        assert not recorder.flush(0.2)

        with running_broker(broker):
            admin = AIOKafkaAdminClient(bootstrap_servers=address)
            await admin.start()
            names = [topic.full_name(namespace) for topic in (EPISODE_EVENTS, PRODUCER_REPORTS)]
            await admin.create_topics([NewTopic(name, 1, 1) for name in names])
            await admin.close()
            assert recorder.flush(120)
        for number in range(20):
            episode.tool(f"without broker {number}")
    assert not recorder.flush(0.2)
    with running_broker(broker):
        assert recorder.flush(120)
        events = await read(address, names[0], at_least=24)
        assert recorder.close(120)
    assert sorted({event.sequence for event in events}) == list(range(24))
    assert isinstance(events[-1], WriterClosed)


async def test_many_turns_a_second_arrive_whole_at_default_limits(kafka: str, topics: str) -> None:
    recorder = rollbus.producers.init(bootstrap_servers=kafka, namespace=topics)
    tokens = tuple(SimpleNamespace(token="x", logprob=-0.5) for _ in range(20))
    choice = AnswerChoice(content="x" * 20, finish_reason="stop", entries=tokens, token_ids=range(20))
    answer = ServerAnswer(model="agent@1", prompt_token_ids=range(500), completion_tokens=20, choices=(choice,))
    request = {"messages": [{"role": "user", "content": "word " * 400}], **NEUTRAL}
    exchange = Exchange(request=request, answer=answer)

    def work() -> None:
        for _ in range(400):
            episode = recorder.start(task="t")
            for _ in range(5):
                episode.record(exchange, "")
            episode.end()

    await asyncio.to_thread(work)
    assert recorder.flush(120)
    assert recorder.counters["events_delivered"] == recorder.counters["events_emitted"] == 400 * 8
    assert recorder.counts.total("events_dropped") == 0
    events = await read(kafka, EPISODE_EVENTS.full_name(topics), at_least=400 * 8)
    turns = [event for event in events if isinstance(event, TurnRecorded)]
    assert len({event.event_id for event in events}) == 400 * 8
    assert all(turn.trainable for turn in turns)
    assert recorder.close(120)


def run(program: str, *arguments: str, ends_with: int = 0) -> None:
    """Run a program of its own that records; its stderr must stay empty."""
    completed = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert completed.returncode == ends_with, completed.stderr
    assert completed.stderr == ""


async def test_a_script_that_simply_ends_has_sent_everything(kafka: str, topics: str) -> None:
    run(
        """
        import sys
        from rollbus.producers import init
        from rollbus.producers.sending import process_hooks
        process_hooks.EXIT_DEADLINE_S = 120
        recorder = init(bootstrap_servers=sys.argv[1].replace("127.0.0.1", "localhost"), namespace=sys.argv[2])
        with recorder.episode(task="t") as episode:
            episode.tool("x")
        """,
        kafka,
        topics,
    )
    events = await read(kafka, EPISODE_EVENTS.full_name(topics), at_least=4)
    assert isinstance(events[-1], WriterClosed)


async def test_the_commands_of_the_pages_of_capture_run_as_written(kafka: str, topics: str, tmp_path: Path) -> None:
    pages = {page.stem: page.read_text() for page in PAGES.glob("*.md")}
    (commands,) = {re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)[0] for text in pages.values()}
    (program,) = re.findall(r"```python\n(.*?)```", pages["openai"], flags=re.DOTALL)
    (tmp_path / "app.py").write_text(program)
    make_principals(tmp_path / ".rollbus" / "secrets")  # as `rollbus up` does
    settings = {"ROLLBUS_KAFKA__BOOTSTRAP_SERVERS": kafka, "ROLLBUS_NAMESPACE": topics}
    environment = {**os.environ, **settings, "PATH": f"{Path(ROLLBUS).parent}:{os.environ['PATH']}"}
    server = ModelServer(Faults())
    try:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-ec", commands.replace("http://127.0.0.1:8000/v1", server.url)),
            cwd=tmp_path,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, notes = (text.decode() for text in await process.communicate())
    finally:
        server.close()
    assert process.returncode == 0, notes
    rows = [line.split() for line in output.splitlines() if "agent@3" in line]
    assert rows == [[str(number), "agent@3", "httpx", "trainable"] for number in range(2)]
    assert notes.splitlines()[-1] == "rollbus: recorded 2 turns of 1 process, 2 of them trainable"
    events = await read(kafka, EPISODE_EVENTS.full_name(topics), at_least=4)
    assert [event.trainable for event in events if isinstance(event, TurnRecorded)] == [True, True]
    assert [event.stop_reason for event in events if isinstance(event, EpisodeEnded)] == ["completed"]


async def test_a_script_ends_although_the_broker_is_gone(namespace: str) -> None:
    run(
        """
        import logging, sys, time
        from rollbus.producers import init
        from rollbus.producers.sending import process_hooks
        logging.disable()
        process_hooks.EXIT_DEADLINE_S = 0.5
        recorder = init(bootstrap_servers="127.0.0.1:9", namespace=sys.argv[1])
        with recorder.episode(task="t") as episode:
            episode.tool("x")
        """,
        namespace,
    )


def test_missing_topics_are_named_in_two_log_lines_with_a_count(kafka: str, namespace: str) -> None:
    program = """
        import logging, sys, time
        import aiokafka.client
        logging.basicConfig(level=logging.WARNING)
        from rollbus.producers import init
        from rollbus.producers.sending import process_hooks
        process_hooks.EXIT_DEADLINE_S = 0.5
        recorder = init(bootstrap_servers=sys.argv[1], namespace=sys.argv[2])
        with recorder.episode(task="t") as episode:
            episode.tool("x")
        while recorder.healthy is None:
            time.sleep(0.01)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), kafka, namespace]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    unavailable, lost = completed.stderr.splitlines()
    missing = f"topic {namespace}episode-events does not exist on {kafka}; create it with `rollbus topics create`"
    assert f"rollbus: events wait in memory, their sink is unavailable: UnavailableError('{missing}" in unavailable
    assert "rollbus: 5 records (events, and the recorder's reports on them) were not delivered" in lost


async def test_a_forked_child_writes_as_a_writer_of_its_own(kafka: str, topics: str) -> None:
    run(
        """
        import os, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        from rollbus.producers import init
        from rollbus.producers.sending import process_hooks
        process_hooks.EXIT_DEADLINE_S = 120
        recorder = init(bootstrap_servers=sys.argv[1], namespace=sys.argv[2])
        with recorder.episode(task="t") as episode:
            episode.tool("before")
            recorder.flush(120)
            pid = os.fork()
            if pid == 0:
                episode.tool("in the child")
                recorder.close(120)
                os._exit(0)
            os.waitpid(pid, 0)
            episode.tool("after")
        """,
        kafka,
        topics,
    )
    events = await read(kafka, EPISODE_EVENTS.full_name(topics), at_least=7)
    child = [event for event in events if getattr(event, "name", "") == "in the child"]
    assert len(child) == 1
    parent = [event for event in events if event.writer_id != child[0].writer_id]
    assert [event.sequence for event in parent] == [0, 1, 2, 3, 4]
    (closed,) = [event for event in events if isinstance(event, WriterClosed) and event.count == 1]
    assert closed.writer_id == child[0].writer_id


async def test_a_killed_process_leaves_its_events_on_disk_for_the_next(kafka: str, topics: str, tmp_path: Path) -> None:
    program = """
        import logging, os, signal, sys
        from rollbus.producers import init
        logging.disable()
        recorder = init(bootstrap_servers="127.0.0.1:9", namespace=sys.argv[1], spool_folder=sys.argv[2])
        with recorder.episode(task="t") as episode:
            episode.tool("x")
        if not recorder.flush(120):
            sys.exit("nothing reached the disk")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    run(program, topics, str(tmp_path), ends_with=-signal.SIGKILL)
    recorder = rollbus.producers.init(bootstrap_servers=kafka, namespace=topics, spool_folder=tmp_path)
    with recorder.episode(task="next"):
        pass
    events = await read(kafka, EPISODE_EVENTS.full_name(topics), at_least=7)
    assert [event.sequence for event in events if event.episode_id == events[0].episode_id] == [0, 1, 2, 3]
    assert recorder.close(120)
    assert os.listdir(tmp_path) == []


class TestKafkaSink(SinkContract):
    """The Kafka sink keeps the promises that the in-memory one keeps."""

    @pytest.fixture(autouse=True)
    def _broker(self, kafka: str, topics: str) -> None:
        self.address, self.namespace = kafka, topics

    async def make(self) -> KafkaSink:
        """Return a sink that is not started."""
        return KafkaSink(KafkaConnection(bootstrap_servers=self.address))

    async def received(self, sink: KafkaSink, count: int) -> list[tuple[bytes, bytes, int]]:
        """Key, value and timestamp of what arrived."""
        options = {"bootstrap_servers": self.address, "auto_offset_reset": "earliest"}
        async with AIOKafkaConsumer(self.topic(), **options) as consumer:
            messages = [await consumer.getone() for _ in range(count)]
        return [(message.key or b"", message.value or b"", message.timestamp) for message in messages]

    def topic(self) -> str:
        """Where the contract's records go."""
        return EPISODE_EVENTS.full_name(self.namespace)

    def limit(self, sink: KafkaSink) -> int:
        """Return the size of a value that the sink refuses."""
        return MAX_MESSAGE_BYTES + 1
