"""Claims on a real group: whose a partition is, and that only a member of the present generation may say so."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import CommitFailedError, ProducerFenced

from rollbus.runtime.kafka.writing import Row
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.exactly_once.claims import Committed
from rollbus.streams.exactly_once.claims_on_broker import claim_offset, committed_offset, require_generation
from rollbus.streams.exactly_once.transaction import ProducerSession, ProducerSessions
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from tests.services.streams.fixtures import CountStage, read_places, stream_settings
from tests.waiting import until, until_found

pytestmark = pytest.mark.services

NewMember = Callable[[], Awaitable[AIOKafkaConsumer]]


@pytest.fixture
async def settings(kafka: str, namespace: str) -> StreamSettings:
    test_settings = stream_settings(kafka, namespace)
    await ensure_topics(test_settings, [CountStage()])
    return test_settings


@pytest.fixture
def place(settings: StreamSettings) -> Partition:
    return Partition(CountStage.input.full_name(settings.namespace), 0)


@pytest.fixture
async def new_member(settings: StreamSettings, place: Partition) -> AsyncIterator[NewMember]:
    async with AsyncExitStack() as stack:

        async def join() -> AIOKafkaConsumer:
            group = f"{settings.namespace}counter"
            options = {**settings.kafka.client_options(), "group_id": group, "enable_auto_commit": False}
            member = AIOKafkaConsumer(place.topic, **options)
            await member.start()
            stack.push_async_callback(member.stop)
            return member

        yield join


async def until_committed(member: AIOKafkaConsumer, place: Partition, expected: Committed) -> None:
    """Wait until a transaction that has been committed can be read."""
    look = partial(committed_offset, member, place)
    await until_found(look, "the offset is not committed", is_enough=lambda offsets: offsets == expected)


async def test_a_claim_is_read_back_and_a_transaction_takes_its_place(
    settings: StreamSettings, place: Partition, new_member: NewMember
) -> None:
    member = await new_member()
    assert await committed_offset(member, place) is None
    claimed = Committed(3, "me", "first claim")
    await claim_offset(member, place, claimed, member._coordinator.generation)
    assert await committed_offset(member, place) == claimed
    sessions = ProducerSessions(settings, f"{settings.namespace}counter", "me")
    await (await sessions.get()).commit(place, 5, [Row(f"{settings.namespace}drops", 0, b"k", b"v")])
    await sessions.close()
    await until_committed(member, place, Committed(5, "me"))


async def test_a_claim_of_an_earlier_generation_is_refused(place: Partition, new_member: NewMember) -> None:
    member = await new_member()
    generation = member._coordinator.generation
    await require_generation(member, generation)
    await new_member()
    await until(lambda: member._coordinator.generation > generation, "it does not rejoin by itself")
    with pytest.raises(CommitFailedError):
        await claim_offset(member, place, Committed(3, "late", "first claim"), generation)
    assert await committed_offset(member, place) is None


@pytest.mark.parametrize("asks", [claim_offset, require_generation])
async def test_a_member_of_an_old_generation_is_refused_by_the_broker(
    asks: Callable[..., Awaitable[None]], place: Partition, new_member: NewMember
) -> None:
    member = await new_member()
    stale = member._coordinator.generation - 1
    member._coordinator.generation = stale
    claimed = (place, Committed(3, "late", "first claim")) if asks is claim_offset else ()
    with pytest.raises(CommitFailedError):
        await asks(member, *claimed, stale)
    assert await committed_offset(member, place) is None


async def test_a_fenced_member_commits_nothing_of_its_open_transaction(
    settings: StreamSettings, place: Partition, new_member: NewMember
) -> None:
    group, drops = f"{settings.namespace}counter", f"{settings.namespace}drops"
    zombie = AIOKafkaProducer(bootstrap_servers=settings.kafka.bootstrap_servers, transactional_id="zombie")
    await zombie.start()
    await zombie.begin_transaction()
    await zombie.send_and_wait(drops, b"left open", partition=0)
    await zombie.send_offsets_to_transaction({TopicPartition(*place): 9}, group)
    heir = ProducerSession(settings, group, "heir")
    await heir.start()
    await heir.fence("zombie")
    with pytest.raises(ProducerFenced):
        await zombie.commit_transaction()
    await zombie.stop()
    await heir.commit(place, 1, [Row(drops, 0, b"k", b"of the heir")])
    await heir.stop()
    await until_committed(await new_member(), place, Committed(1, "heir"))
    (records,) = (await read_places(settings.kafka, [TopicPartition(drops, 0)])).values()
    assert [record.value for record in records] == [b"of the heir"]


async def test_a_fenced_session_leaves_no_error_in_the_event_loop(settings: StreamSettings, place: Partition) -> None:
    reported = list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
    older, newer = (ProducerSession(settings, f"{settings.namespace}counter", "me") for _ in range(2))
    await older.start()
    await newer.start()
    topics = (place.topic, f"{settings.namespace}drops")
    rows = [Row(topic, number, b"k", b"late") for topic in topics for number in range(settings.event_partitions)]
    with pytest.raises(ProducerFenced):
        await older.commit(place, 1, rows)
    await older.stop()
    await newer.stop()
    del older, newer
    for _ in range(10):  # what stopping has left to do
        await asyncio.sleep(0)
    gc.collect()
    assert reported == []
