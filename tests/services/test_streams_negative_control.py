"""The checker of the fault tests bites: a worker without transactions passes it undisturbed, and not when killed."""

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from rollbus.schemas.topics import EPISODE_EVENTS
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.exactly_once.processing import StagePartition
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.streams.state.stage import PureAsEffects
from tests.services.stream_fixtures import CountStage, read_drops, send_events, stream_settings
from tests.services.stream_process import check_exactly_once

pytestmark = pytest.mark.services

KEYS = [f"k{number}" for number in range(5)]
PER_KEY = 4


class Careless:
    """Sends the outputs, then commits the offsets, each on its own; its state outlives it, as a local store does."""

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self._topic = EPISODE_EVENTS.full_name(settings.namespace)
        self._work = {
            number: StagePartition(PureAsEffects(CountStage()), Partition(self._topic, number), app_version="0")
            for number in range(settings.event_partitions)
        }

    async def run(self, *, killed_before_commit: bool = False) -> None:
        """Work to the end of the topic, from the committed offsets on."""
        options = self._settings.kafka.client_options()
        consumer = AIOKafkaConsumer(**options, group_id=f"{self._settings.namespace}careless", enable_auto_commit=False)
        producer = AIOKafkaProducer(**options)
        await consumer.start()
        await producer.start()
        try:
            places = [TopicPartition(self._topic, number) for number in self._work]
            consumer.assign(places)
            for place, end in (await consumer.end_offsets(places)).items():
                position = await consumer.committed(place) or 0
                consumer.seek(place, position)
                while position < end:
                    records = (await consumer.getmany(place, timeout_ms=1_000)).get(place, [])
                    if not records:
                        continue
                    for output in (await self._work[place.partition].process(records)).outputs:
                        name = self._settings.namespace + output.topic
                        await producer.send_and_wait(name, output.value, key=output.key)
                    if killed_before_commit:
                        return
                    position = await consumer.position(place)
                    await consumer.commit({place: position})
        finally:
            await producer.stop()
            await consumer.stop()


@pytest.fixture
async def settings(kafka: str, namespace: str) -> StreamSettings:
    made = stream_settings(kafka, namespace)
    await ensure_topics(made, [CountStage()])
    await send_events(made, KEYS, range(PER_KEY))
    return made


async def test_without_a_fault_the_checker_has_nothing_to_say(settings: StreamSettings) -> None:
    await Careless(settings).run()
    check_exactly_once(await read_drops(settings), KEYS, PER_KEY)


async def test_offsets_committed_outside_the_transaction_are_found_out(settings: StreamSettings) -> None:
    careless = Careless(settings)
    await careless.run(killed_before_commit=True)
    await careless.run()
    with pytest.raises(AssertionError):
        check_exactly_once(await read_drops(settings), KEYS, PER_KEY)
