"""A producer with the permissions printed for it, on a broker that enforces them, and what it tries."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
from aiokafka.structs import OffsetAndMetadata

from rollbus.consumers.dead_letters_kafka import read_dead_letters
from rollbus.schemas.codec import encode
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.signing import Signing
from rollbus.schemas.topics import ALIASES, EPISODE_EVENTS, EXCLUSIONS, RUN_LOG, SCORES, TRAJECTORIES
from rollbus.streams.operate.forget import RootedEpisode, exclusions
from tests.builders import make_config, make_tick
from tests.faults.episodes import Traffic, check_fates, pipeline
from tests.faults.log_contents import read_everything
from tests.hostile.attacker import KEY, keys
from tests.services.kafka.acl_broker import Server, command, connection, server, settings_of, write_configs
from tests.services.streams.process import running

__all__ = ["server"]
pytestmark = pytest.mark.services

FOREVER = 2**53
SIGNING: Signing = keys(KEY)
FORGED_RECORDS = (
    make_tick(2**40, stream_time_ms=FOREVER),
    make_tick(FOREVER, stream_time_ms=1),
    make_config("assembly", AssemblyConfig(target_model="nobody")),
    make_config("scoring", AssemblyConfig()),
)


async def require_refusal(attempt: Callable[[], Awaitable[object]], error: type[KafkaError]) -> None:
    with pytest.raises(error):
        await asyncio.wait_for(attempt(), 120)


async def test_a_producer_can_write_only_events_and_forges_nothing_of_effect(
    server: Server, namespace: str, tmp_path: Path
) -> None:
    configs = write_configs(server, namespace, tmp_path)
    admin = settings_of(server, namespace, "admin")
    await asyncio.to_thread(command, configs["admin"], "topics", "create", "--acls")
    options = connection(server, "producer").client_options()
    own_partition = TopicPartition(EPISODE_EVENTS.full_name(namespace), 0)
    producer, consumer = AIOKafkaProducer(**options), AIOKafkaConsumer(**options, auto_offset_reset="earliest")
    member = AIOKafkaConsumer(**options, group_id=f"{namespace}assembly", enable_auto_commit=False)
    await producer.start()
    await consumer.start()
    try:
        # The broker refuses all that is not the producer's.
        for topic in (TRAJECTORIES, SCORES, RUN_LOG, EXCLUSIONS):
            name = topic.full_name(namespace)
            await require_refusal(partial(producer.send_and_wait, name, b"x"), TopicAuthorizationFailedError)
        for changelog in ("ticker", "assembly"):
            name = f"{namespace}{changelog}.changelog"
            await require_refusal(partial(producer.send_and_wait, name, b"x"), TopicAuthorizationFailedError)
        consumer.assign([own_partition])
        await require_refusal(lambda: consumer.getmany(timeout_ms=5_000), TopicAuthorizationFailedError)
        claim = {own_partition: OffsetAndMetadata(FOREVER, f"claimed by {namespace}assembly.me")}
        member.assign([own_partition])
        await member.start()
        await require_refusal(lambda: member.commit(claim), GroupAuthorizationFailedError)
        for name in ("ticker", "assembly.me"):
            ticker = AIOKafkaProducer(**options, transactional_id=f"{namespace}{name}")
            try:
                await require_refusal(ticker.start, TransactionalIdAuthorizationFailed)
            finally:
                await ticker.stop()

        # What it forges among events is counted, and nothing else comes of it.
        traffic = Traffic(admin.model_copy(update={"kafka": connection(server, "producer")}))
        signed = admin.model_copy(update={"signing": SIGNING})
        async with running(signed, pipeline()):
            await traffic.send(range(2))
            episodes = [
                RootedEpisode(episode_id, episode_id)
                for episode_id in sorted({event.episode_id for event in traffic.events})
            ]
            forged = [*FORGED_RECORDS, *exclusions(episodes, reason="forgotten", now_ms=0)]
            for topic in (EPISODE_EVENTS, ALIASES):
                name = topic.full_name(namespace)
                for partition in range(2):
                    for record in forged if topic is EPISODE_EVENTS else FORGED_RECORDS:
                        await producer.send_and_wait(name, encode(record), partition=partition, timestamp_ms=FOREVER)
            await traffic.send(range(2, 4))
            traffic.settings = admin
            await traffic.until_trained()
    finally:
        await producer.stop()
        await consumer.stop()
        await member.stop()
    contents = await read_everything(admin, pipeline())
    check_fates(contents, traffic.events)
    letters = await read_dead_letters(admin.kafka, namespace)
    count = 2 * (len(forged) + len(FORGED_RECORDS))
    assert [letter.error_class for letter in letters] == ["UntrustedRecordError"] * count
    now_ms = time.time() * 1000  # the timestamps are the broker's, not the forger's
    assert all(abs(letter.timestamp_ms - now_ms) < 600_000 for letter in letters)
