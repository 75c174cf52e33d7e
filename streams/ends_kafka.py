"""Where the input partitions end, asked on a connection of its own: the fetch thread may be what hangs."""

import asyncio
from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from rollbus.schemas.stopping_kafka import stop_quietly
from rollbus.streams.batch import Partition
from rollbus.streams.settings import StreamSettings

ANSWER_S = 5.0


class EndOffsets:
    """Asks the broker for the ends of partitions, as a committed reader sees them."""

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self._consumer: AIOKafkaConsumer | None = None
        self._known: dict[Partition, int] = {}

    async def start(self) -> None:
        """Connect."""
        self._consumer = AIOKafkaConsumer(
            **self._settings.kafka.client_options(), isolation_level="read_committed", enable_auto_commit=False
        )
        await self._consumer.start()

    async def of(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the ends; where the broker does not answer, those known from before."""
        places = [TopicPartition(*partition) for partition in partitions]
        if self._consumer is not None and places:
            try:
                async with asyncio.timeout(ANSWER_S):
                    ends = await self._consumer.end_offsets(places)
                self._known = {Partition(*place): end for place, end in ends.items()}
            except (KafkaError, TimeoutError, OSError):
                pass  # the runners tell of the broker's trouble
        return self._known

    async def stop(self) -> None:
        """Disconnect."""
        if self._consumer is not None:
            await stop_quietly(self._consumer.stop)
