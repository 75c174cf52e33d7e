"""What `rollbus topics acls` prints, applied to a broker that enforces it: each role can do its work, and no more."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)

from rollbus.consumers.clickhouse.sink.status import wait_for_sink
from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.health.reading import read_health
from rollbus.producers import init
from rollbus.producers.sending.kafka_sink import KafkaSink
from rollbus.producers.sending.sink import Outbound
from rollbus.resample.attempts import Resampler
from rollbus.resample.requests import resample
from rollbus.runtime.health.heart import Heart, Report
from rollbus.runtime.kafka.writing import Row, send_each
from rollbus.schemas.codec import encode
from rollbus.schemas.ids import canonical_json, trajectory_id
from rollbus.schemas.records.control import ConfigApplied
from rollbus.schemas.records.groups import ResampleRequested
from rollbus.schemas.records.steps import StepCompleted
from rollbus.schemas.topics import (
    EPISODE_EVENTS,
    POLICY_VERSIONS,
    RESAMPLE_REQUESTS,
    TOPICS,
    TRAINING_STEPS,
    TRAJECTORIES,
)
from rollbus.streams.operate.forget import Search
from rollbus.streams.operate.forget_on_log import search_log, steps_that_used, write_exclusions
from rollbus.streams.replay.kafka.manifest import read_manifests
from rollbus.trainer.backends.memory import MemoryBackend
from rollbus.trainer.ledger.log_kafka import KafkaTrainerLog
from rollbus.trainer.loop.loop import Trainer
from tests.builders import START_MS, make_excluded
from tests.faults.episodes import RUN, Traffic, group_events, pipeline
from tests.services.kafka.acl_broker import (
    Server,
    command,
    connection,
    on_broker,
    printed_permissions,
    server,
    settings_of,
    write_configs,
)
from tests.services.streams.fixtures import read_topic
from tests.services.streams.process import running
from tests.trainer.scenario import SETTINGS
from tests.waiting import until_found

__all__ = ["server"]
pytestmark = pytest.mark.services


async def consume_everything(server: Server, namespace: str) -> int:
    """Do what the sink does: join its group, read all topics, commit; return how many records there were."""
    async with AIOKafkaConsumer(
        *(topic.full_name(namespace) for topic in TOPICS),
        **connection(server, "sink").client_options(),
        group_id=f"{namespace}sink",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        count = 0
        while records := await consumer.getmany(timeout_ms=3_000):
            count += sum(map(len, records.values()))
            await consumer.commit()
            if count > 20:
                break
        return count


@asynccontextmanager
async def producer_of(server: Server, user: str, **options: Any) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(**connection(server, user).client_options(), **options)
    try:
        await producer.start()
        yield producer
    finally:
        await producer.stop()


async def read_by(server: Server, user: str, topic: str) -> int:
    """Return how many records a user gets to see of a topic's first partition."""
    options = connection(server, user).client_options()
    async with AIOKafkaConsumer(**options, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        try:
            return sum(map(len, (await asyncio.wait_for(consumer.getmany(timeout_ms=3_000), 120)).values()))
        except TopicAuthorizationFailedError:
            return 0


async def try_to_join(server: Server, user: str, group: str, topic: str) -> None:
    consumer = AIOKafkaConsumer(topic, **connection(server, user).client_options(), group_id=group)
    try:
        await asyncio.wait_for(consumer.start(), 120)
        await asyncio.wait_for(consumer.getmany(timeout_ms=5_000), 120)
    finally:
        await consumer.stop()


async def work(server: Server, namespace: str) -> None:
    """Let every role do all its work once, from the producer's events to the trainer's step and the sink's reading."""
    sink = KafkaSink(connection(server, "producer"))
    await sink.start()
    name = EPISODE_EVENTS.full_name(namespace)
    try:
        records = [Outbound(name, e.root_episode_id.encode(), encode(e), START_MS) for e in group_events(0)]
        assert await sink.send(records) == frozenset()
    finally:
        await sink.close()
    traffic = Traffic(settings_of(server, namespace, "admin"))
    traffic.events = group_events(0)
    applied = ConfigApplied(
        stage="grouping",
        run_id=RUN.run_id,
        config_hash=RUN.config_hash(),
        content=canonical_json(RUN.model_dump(mode="json")),
    )
    async with running(settings_of(server, namespace, "worker"), pipeline(), [applied]):
        await traffic.until_trained()
        log = KafkaTrainerLog(connection(server, "trainer"), namespace=namespace, run_id="main", model="agent")
        try:
            trainer = Trainer(log, MemoryBackend(), SETTINGS.model_copy(update={"batch_wait_s": 5.0}))
            await asyncio.wait_for(trainer.run(until_idle=True), 120)
        finally:
            await log.close()
    steps = await read_topic(settings_of(server, namespace, "admin"), TRAINING_STEPS.name, 1)
    assert any(isinstance(step, StepCompleted) and step.trained for step in steps)
    assert await consume_everything(server, namespace) > 20


async def record_as_proxy(server: Server, namespace: str) -> None:
    """Do what `rollbus proxy run` and `rollbus ingest serve` do on the broker: record, and beat."""
    sink, kafka = KafkaSink(connection(server, "proxy")), connection(server, "proxy")
    await sink.start()
    records = [Outbound(EPISODE_EVENTS.full_name(namespace), b"p", encode(group_events(1)[0]), START_MS)]
    async with Heart(kafka, namespace, "proxy", "0.1.0").beating(lambda: Report(holds=("proxy of x",))):
        assert await sink.send(records) == frozenset()
        look = partial(read_health, connection(server, "operator"), namespace)
        await until_found(look, "no heart beats", is_enough=lambda picture: picture.processes)
    await sink.close()


async def make_an_attempt(server: Server, namespace: str) -> None:
    """Do what `rollbus resample run` does: take a request, and record what the agent does."""
    request = ResampleRequested(
        episode_id="again", run_id="main", trajectory_id="t", attempt=1, task="play", requested_at_ms=0,
        useful_until_ms=1,
    )  # fmt: skip
    row = Row(RESAMPLE_REQUESTS.full_name(namespace), 0, b"again", encode(request))
    await send_each(connection(server, "admin"), [row])
    recorder = init(security=connection(server, "resampler"), namespace=namespace, producer="resample")
    attempt_made = asyncio.Event()
    loop = asyncio.get_running_loop()
    resampler = Resampler(lambda attempt: loop.call_soon_threadsafe(attempt_made.set), recorder, clock_ms=lambda: 0)
    stop = asyncio.Event()
    work = asyncio.create_task(resample(settings_of(server, namespace, "resampler"), "main", resampler, stop=stop))
    await asyncio.wait_for(attempt_made.wait(), 120)
    stop.set()
    await work
    await asyncio.to_thread(recorder.close)


async def forget(server: Server, namespace: str) -> None:
    """Do what `rollbus forget` does on the broker."""
    settings, events = settings_of(server, namespace, "forget"), group_events(0)
    (start, *_) = events
    excluded = make_excluded(start.episode_id)
    search = Search({}, frozenset({start.episode_id}))
    await search_log(settings, search, lambda count: None)
    assert await write_exclusions(settings, [excluded]) == 1
    assert await steps_that_used(settings, frozenset({trajectory_id(start.episode_id)}))
    assert await read_manifests(settings) is not None
    sink = SinkSettings(kafka=settings.kafka, namespace=namespace)
    assert await wait_for_sink(sink) > 0, "none runs"


def operate(configs: dict[str, Path]) -> None:
    """Give each command that reads or writes the broker, as the user whose role it is."""
    command(configs["replay"], "replay", "--from", "earliest", "--grouping", "group_size=2", "--as", "smaller")
    assert "smaller" in command(configs["replay"], "replay", "list")
    assert "in effect" in command(configs["promote"], "replay", "promote", "smaller")
    assert "deleted" in command(configs["replay"], "replay", "delete", "smaller")
    command(configs["operator"], "run", "pause", "main")
    assert "main" in command(configs["operator"], "run", "list")
    command(configs["operator"], "dead-letters", "list")


async def test_the_printed_permissions_are_enough_for_each_role_and_no_more(
    server: Server, namespace: str, tmp_path: Path
) -> None:
    configs = write_configs(server, namespace, tmp_path)
    output = await asyncio.to_thread(command, configs["admin"], "topics", "create", "--acls")
    assert "allowed each of producer, proxy, worker" in output
    assert await on_broker(server) == printed_permissions(configs["worker"])
    await work(server, namespace)
    await record_as_proxy(server, namespace)
    await make_an_attempt(server, namespace)
    await asyncio.to_thread(operate, configs)
    await forget(server, namespace)
    events, trajectories = EPISODE_EVENTS.full_name(namespace), TRAJECTORIES.full_name(namespace)
    steps, drops = TRAINING_STEPS.full_name(namespace), f"{namespace}drops"
    versions = POLICY_VERSIONS.full_name(namespace)
    picture = await read_health(connection(server, "operator"), namespace)
    assert [(process.kind, process.state) for process in picture.processes] == [("proxy", "stopped")]
    assert {"assembly", "sink", "trainer.main"} <= {group.group for group in picture.groups}
    assert [run.step for run in picture.runs] == [1]
    beyond = {"resampler": "run-log", "replay": "run-log", "promote": "drops", "forget": "run-log", "operator": "drops"}
    wrong = [(user, namespace + topic) for user, topic in beyond.items()]
    wrong += [
        ("producer", trajectories),
        ("producer", f"{namespace}heartbeats"),
        ("worker", steps),
        ("trainer", events),
        ("sink", drops),
    ]
    for user, topic in wrong:
        async with producer_of(server, user) as producer:
            with pytest.raises(TopicAuthorizationFailedError):
                await asyncio.wait_for(producer.send_and_wait(topic, b"not allowed"), 120)
    for user, topic in (("producer", steps), ("worker", steps), ("trainer", events), ("operator", versions)):
        assert await read_by(server, "admin", topic) > 0
        assert await read_by(server, user, topic) == 0
    for user, topic in (("trainer", trajectories), ("sink", events)):
        with pytest.raises(GroupAuthorizationFailedError):
            await try_to_join(server, user, f"{namespace}assembly", topic)
    for user, name in (("trainer", "ticker"), ("forget", "promote"), ("promote", "forget")):
        with pytest.raises(TransactionalIdAuthorizationFailed):
            async with asyncio.timeout(120), producer_of(server, user, transactional_id=namespace + name):
                pass
