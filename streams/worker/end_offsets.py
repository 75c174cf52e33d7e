"""Ask where the input partitions end, on a separate connection: the fetch thread itself may hang."""

import asyncio
from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from rollbus.runtime.kafka.clients import new_consumer, start_client, stop_clients
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.kafka.settings import StreamSettings

ANSWER_S = 5.0


class EndOffsets:
    """Asks the broker for the ends of partitions, as a committed reader sees them."""

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self._consumer: AIOKafkaConsumer | None = None
        self._last_ends: dict[Partition, int] = {}

    async def start(self) -> None:
        """Connect."""
        self._consumer = await start_client(new_consumer(self._settings.kafka))

    async def read_ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the ends; if the broker does not answer, the last known ones."""
        places = [TopicPartition(*partition) for partition in partitions]
        if self._consumer is not None and places:
            try:
                async with asyncio.timeout(ANSWER_S):
                    ends = await self._consumer.end_offsets(places)
                self._last_ends = {Partition(*place): end for place, end in ends.items()}
            except (KafkaError, TimeoutError, OSError):
                pass  # the runners report the broker's trouble
        return self._last_ends

    async def stop(self) -> None:
        """Disconnect."""
        await stop_clients(self._consumer)
