"""A worker on a real broker: state over restarts, ticks, losses, and refusals to start."""

import asyncio

import pytest
from aiokafka import TopicPartition
from aiokafka.protocol.admin import DeleteGroupsRequest

from rollbus.local.process.ports import find_free_port
from rollbus.runtime.kafka import clients
from rollbus.runtime.kafka.partitions import count_partitions
from rollbus.runtime.kafka.writing import partition_of
from rollbus.schemas.codec import encode
from rollbus.schemas.errors import ConfigurationError, DataLossError, UnavailableError
from rollbus.schemas.ids import canonical_json
from rollbus.schemas.records.config import AssemblyConfig, ScoringConfig
from rollbus.schemas.records.control import ConfigApplied, Tick
from rollbus.schemas.topics import CONFIGURED, DEAD_LETTERS, EPISODE_EVENTS, TOPICS
from rollbus.streams.exactly_once.batch import Batch
from rollbus.streams.exactly_once.runner import Runner
from rollbus.streams.kafka.names import group_id
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import check_topics, describe_topics, ensure_topics
from rollbus.streams.operate.repair import accept_loss
from rollbus.streams.pipeline import namespace_stages
from rollbus.streams.state.watermarks import hops
from rollbus.streams.worker import transport
from rollbus.streams.worker.worker import serve
from tests.builders import make_tick
from tests.hostile.attacker import keys
from tests.services.streams.fixtures import (
    CountStage,
    commit_offsets,
    delete_before,
    read_topic,
    send,
    send_events,
    stream_settings,
)
from tests.services.streams.process import check_exactly_once, running, until_counted, until_ended
from tests.waiting import until, until_found

pytestmark = pytest.mark.services

KEYS = [f"k{number}" for number in range(10)]


async def lost_offsets(settings: StreamSettings, *, dry_run: bool) -> set[tuple[int, int]]:
    losses = await accept_loss(settings, CountStage(), now_ms=5, dry_run=dry_run)
    return {(loss.first, loss.last) for loss in losses.values()}


@pytest.fixture
async def settings(kafka: str, namespace: str) -> StreamSettings:
    test_settings = stream_settings(kafka, namespace)
    await ensure_topics(test_settings, [CountStage(), CountStage("assembly")])
    return test_settings


async def delete_all_records(settings: StreamSettings) -> None:
    """Do to the events what retention does."""
    name = EPISODE_EVENTS.full_name(settings.namespace)
    described = {topic.name: topic for topic in await describe_topics(settings)}
    ends = described[name].end_offsets
    await delete_before(settings.kafka, {TopicPartition(name, number): end for number, end in enumerate(ends)})


async def forget_offsets(settings: StreamSettings, stage: CountStage) -> None:
    """Do to the stage's group what the broker does a week after its last member."""
    async with clients.running(settings.kafka, admin := clients.new_admin(settings.kafka)):
        answer = await admin._send_request(DeleteGroupsRequest([group_id(settings.namespace, stage.name)]))
        ((_, error),) = answer.results
        assert error == 0


async def test_counts_continue_after_a_restart(settings: StreamSettings) -> None:
    async with running(settings, [CountStage()]):
        await send_events(settings, KEYS, range(3))
        await until_counted(settings, 30)
    async with running(settings, [CountStage()]) as worker:
        await send_events(settings, KEYS, range(3, 5))
        drops = await until_counted(settings, 50)
        metrics = [runner.metrics for runner in worker.apps[0].runners.values()]
        assert sum(metric.restored_rows for metric in metrics) == len(KEYS)
        await until(lambda: all(metric.lag == 0 for metric in metrics), "lag stays")
    check_exactly_once(drops, KEYS, 5)


async def test_ticks_reach_every_input_and_a_configuration_is_applied_once_per_key(settings: StreamSettings) -> None:
    config = AssemblyConfig()
    applied = ConfigApplied(
        stage="assembly", config_hash=config.config_hash(), content=canonical_json(config.model_dump(mode="json"))
    )
    signed = settings.model_copy(update={"signing": keys("k" * 16)})
    stages = namespace_stages(config, ScoringConfig())
    await ensure_topics(settings, stages)
    enough = 0
    for keys_in_use in (settings, settings, signed, signed):
        async with running(keys_in_use, stages, [applied]) as worker:
            enough += 3
            await until(lambda: min(worker.ticker.watermarks.reached.values(), default=-1) >= enough, "no ticks")  # noqa: B023
            enough = worker.ticker.last.number if worker.ticker.last else 0
    with pytest.raises(ConfigurationError, match="this worker has no key"):
        await serve(settings, stages, [applied], stop=asyncio.Event())
    for topic in (hop.topic for hop in hops([applied])):
        partitions = 1 if topic.partitions == "one" else settings.event_partitions
        records = await read_topic(settings, topic.name, partitions)
        ticks = [record for record in records if isinstance(record, Tick)]
        highest = max(tick.number for tick in ticks)
        assert sorted(tick.number for tick in ticks) == sorted(list(range(highest + 1)) * partitions)
        configs = [record for record in records if isinstance(record, ConfigApplied)]
        assert configs == ([applied] * 2 * partitions if topic in CONFIGURED["assembly"] else [])


async def test_a_worker_that_had_no_partition_for_a_long_time_takes_over(
    kafka: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left to itself, aiokafka leaves a group of which it has fetched nothing for five minutes; here sooner."""
    monkeypatch.setattr(
        transport,
        "new_consumer",
        lambda kafka, **options: clients.new_consumer(kafka, **{"max_poll_interval_ms": 1_000} | options),
    )
    settings = stream_settings(kafka, namespace).model_copy(update={"event_partitions": 1})
    await ensure_topics(settings, [CountStage()])
    async with running(settings, [CountStage()]) as first_worker, running(settings, [CountStage()]) as second_worker:
        hosts = [worker.apps[0] for worker in (first_worker, second_worker)]
        await send_events(settings, ["k0"], range(3))
        await until_counted(settings, 3)
        await asyncio.sleep(3)
        (owner,) = (host for host in hosts if host.runners)
        await owner.stop()
        await send_events(settings, ["k0"], range(3, 6))
        drops = await until_counted(settings, 6)
    check_exactly_once(drops, ["k0"], 6)


@pytest.mark.parametrize("forgotten", [False, True])
async def test_unread_deleted_records_stop_a_worker_until_a_loss_is_accepted(
    settings: StreamSettings, forgotten: bool
) -> None:
    """A broker keeps a group's offsets as long as events are kept: a week after its last member both are gone."""
    async with running(settings, [CountStage()]):
        await send_events(settings, ["k0"], range(3))
        await until_counted(settings, 3)
    await send_events(settings, ["k0"], range(3, 9))
    await delete_all_records(settings)
    if forgotten:
        await forget_offsets(settings, CountStage())
        assert await lost_offsets(settings, dry_run=True) == {(3, 8)}
    with pytest.raises(DataLossError, match=r"records 3 … 8 were deleted by retention"):
        await until_ended(settings, [CountStage()])
    for dry_run in (True, True, False):
        assert await lost_offsets(settings, dry_run=dry_run) == {(3, 8)}
    assert await accept_loss(settings, CountStage(), now_ms=5) == {}
    (letter,) = await read_topic(settings, DEAD_LETTERS.name, partitions=1)
    assert (letter.offset, letter.value, letter.timestamp_ms, letter.error_class) == (3, None, 5, "DataLossError")
    assert "records 3 … 8 were deleted" in letter.message
    async with running(settings, [CountStage()]):
        await send_events(settings, ["k0"], range(9, 10))
        drops = await until_counted(settings, 4)
    assert ("k0/9", "k0:4") in {(drop.unit_id, drop.detail) for drop in drops}


async def make_input_again(settings: StreamSettings) -> None:
    topic = EPISODE_EVENTS.full_name(settings.namespace)
    async with clients.running(settings.kafka, admin := clients.new_admin(settings.kafka)):

        async def is_gone() -> bool:
            return topic not in await count_partitions(admin, [topic])

        await admin.delete_topics([topic])
        await until_found(is_gone, "the topic is not gone")
    await ensure_topics(settings, [CountStage()])


async def test_a_topic_that_was_made_again_is_not_read_from_the_old_position(settings: StreamSettings) -> None:
    async with running(settings, [CountStage()]):
        await send_events(settings, ["k0"], range(3))
        await until_counted(settings, 3)
    await make_input_again(settings)
    await send_events(settings, ["k0"], range(3, 9))
    with pytest.raises(DataLossError, match=r"was deleted and made again.*`rollbus worker accept-loss counter`"):
        await until_ended(settings, [CountStage()])
    assert await accept_loss(settings, CountStage(), now_ms=5)
    assert await accept_loss(settings, CountStage(), now_ms=5) == {}
    letters = await read_topic(settings, DEAD_LETTERS.name, partitions=1)
    assert all("deleted and made again" in letter.message for letter in letters)
    async with running(settings, [CountStage()]):
        drops = await until_counted(settings, 9)
    assert {drop.unit_id for drop in drops} == {f"k0/{number}" for number in range(9)}


async def test_a_stage_refuses_an_offset_set_by_a_tool_until_it_is_accepted(
    settings: StreamSettings,
) -> None:
    async with running(settings, [CountStage()]):
        await send_events(settings, ["k0"], range(3))
        await until_counted(settings, 3)
    name, group = EPISODE_EVENTS.full_name(settings.namespace), group_id(settings.namespace, CountStage().name)
    place = TopicPartition(name, partition_of(b"k0", settings.event_partitions))
    await commit_offsets(settings.kafka, group, {place: 1})
    with pytest.raises(DataLossError, match=r"has committed 1;.*`rollbus worker accept-loss counter`"):
        await until_ended(settings, [CountStage()])
    losses = await accept_loss(settings, CountStage(), now_ms=5)
    assert [loss.resumes_at for loss in losses.values()] == [3]
    async with running(settings, [CountStage()]):
        await send_events(settings, ["k0"], range(3, 4))
        drops = await until_counted(settings, 4)
    check_exactly_once(drops, ["k0"], 4)


async def test_a_loss_is_not_looked_for_without_a_broker_or_without_topics(settings: StreamSettings) -> None:
    with pytest.raises(ConfigurationError, match=r"other\.changelog does not exist; run `rollbus topics create`"):
        await accept_loss(settings, CountStage("other"), dry_run=True)
    nobody = settings.kafka.model_copy(update={"bootstrap_servers": f"127.0.0.1:{find_free_port()}"})
    with pytest.raises(UnavailableError, match="cannot be reached"):
        await accept_loss(settings.model_copy(update={"kafka": nobody}), CountStage(), dry_run=True)


async def test_records_deleted_under_a_running_worker_are_not_stepped_over(settings: StreamSettings) -> None:
    with pytest.raises(DataLossError, match=r"records 3 … 5 were deleted by retention"):  # noqa: PT012
        async with running(settings, [CountStage()]) as worker:
            await send_events(settings, ["k0"], range(3))
            await until_counted(settings, 3)
            consumer = worker.apps[0].app.batches.thread._ensure_consumer()
            places = [TopicPartition(*partition) for partition in worker.apps[0].runners]
            consumer.pause(*places)
            await asyncio.sleep(0.5)  # a fetch that is under way
            await send_events(settings, ["k0"], range(3, 6))
            await delete_all_records(settings)
            consumer.resume(*places)
            await asyncio.wait_for(worker.wait(asyncio.Event()), 120)


async def test_a_position_that_is_lost_in_the_fetch_thread_is_found_again(settings: StreamSettings) -> None:
    async with running(settings, [CountStage()]) as worker:
        await send_events(settings, KEYS, range(2))
        await until_counted(settings, 20)
        for runner, wrong in zip(worker.apps[0].runners.values(), (0, 1_000_000), strict=True):
            await runner._host.seek(runner.partition, wrong)
        await send_events(settings, KEYS, range(2, 4))
        drops = await until_counted(settings, 40)
    check_exactly_once(drops, KEYS, 4)


async def test_a_large_fetch_is_processed_in_parts(settings: StreamSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "RECORDS_AT_ONCE", 7)
    offered, enqueue = list[int](), Runner.enqueue

    def counted(runner: Runner, batch: Batch) -> None:
        offered.append(len(batch.records))
        enqueue(runner, batch)

    monkeypatch.setattr(Runner, "enqueue", counted)
    await send_events(settings, KEYS, range(6))
    async with running(settings, [CountStage()]):
        drops = await until_counted(settings, 60)
    check_exactly_once(drops, KEYS, 6)
    assert max(offered) == 7


async def test_a_wrong_partition_count_refuses_to_start_and_says_which(settings: StreamSettings) -> None:
    other = settings.model_copy(update={"event_partitions": 3})
    with pytest.raises(ConfigurationError, match=r"episode-events has 2 partitions, not 3"):
        await until_ended(other, [CountStage()])


async def test_topics_are_made_once_checked_and_described(settings: StreamSettings) -> None:
    stages = [CountStage(), CountStage("assembly")]
    assert await ensure_topics(settings, stages) == []
    assert await check_topics(settings, stages) == []
    assert "missing.changelog does not exist" in (await check_topics(settings, [CountStage("missing")]))[0]
    await send_events(settings, ["k0"], range(5))
    described = {topic.name: topic for topic in await describe_topics(settings, stages)}
    assert len(described) == len(TOPICS) + len(stages) + 2
    events = described[EPISODE_EVENTS.full_name(settings.namespace)]
    assert (events.records, events.partitions, events.retention) == (5, 2, "time")
    assert events.oldest_timestamp_ms is not None
    assert events.oldest_tick is None
    key = next(key for key in (b"k0", b"k1", b"k2", b"k3") if partition_of(key, 2) == 0)
    values = (b"poison", encode(make_tick(7)), encode(make_tick(8)))
    await send(settings, EPISODE_EVENTS.name, [(key, value) for value in values])
    described = {topic.name: topic for topic in await describe_topics(settings, stages)}
    assert described[EPISODE_EVENTS.full_name(settings.namespace)].oldest_tick == 7
