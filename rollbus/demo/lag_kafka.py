"""How far each consumer of the demo is behind: its group's offsets against the ends of the topics it reads."""

from collections.abc import Mapping

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from rollbus.schemas.errors import UnavailableError


class LagReader:
    """Asks the broker; open it once, close it at the end."""

    def __init__(self, bootstrap_servers: str, groups: Mapping[str, str]) -> None:
        """`groups` is name for people → consumer group."""
        self._groups = groups
        self._admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
        self._consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, isolation_level="read_committed")

    async def open(self) -> None:
        """Connect."""
        await self._admin.start()
        await self._consumer.start()

    async def close(self) -> None:
        """Let go of both connections."""
        await self._consumer.stop()
        await self._admin.close()

    async def read(self) -> dict[str, int]:
        """Records behind, by name; a group that has committed nothing yet is left out."""
        try:
            lag = {}
            for name, group in self._groups.items():
                committed = await self._admin.list_consumer_group_offsets(group)
                positions = {tp: offset.offset for tp, offset in committed.items() if offset.offset >= 0}
                if positions:
                    ends = await self._consumer.end_offsets(list(positions))
                    lag[name] = sum(max(0, ends[tp] - position) for tp, position in positions.items())
            return lag
        except (KafkaError, OSError) as error:
            raise UnavailableError(f"Kafka did not say how far its consumers are: {error}") from error
