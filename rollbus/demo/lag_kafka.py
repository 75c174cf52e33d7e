"""How far each consumer of the demo is behind: its group's offsets against the ends of the topics it reads."""

import logging
from collections.abc import Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from rollbus.schemas.starting_kafka import start_whole
from rollbus.schemas.stopping_kafka import stop_quietly

logger = logging.getLogger(__name__)


class LagReader:
    """Asks the broker; open it once, close it at the end."""

    def __init__(
        self, bootstrap_servers: str, groups: Mapping[str, str], *, options: Mapping[str, Any] | None = None
    ) -> None:
        """`groups` is name for people → consumer group; `options` are of the clients, for a broker with credentials."""
        self._groups = groups
        connection = {**(options or {}), "bootstrap_servers": bootstrap_servers}
        self._admin = AIOKafkaAdminClient(**connection)
        self._consumer = AIOKafkaConsumer(**connection, isolation_level="read_committed")

    async def open(self) -> None:
        """Connect; where that fails or is cancelled, no connection stays."""
        try:
            await start_whole(self._admin.start)
            await start_whole(self._consumer.start)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Let go of both connections."""
        await stop_quietly(self._consumer.stop, self._admin.close)

    async def read(self) -> dict[str, int]:
        """Records behind, by name; a group that the broker cannot tell of now, or that is new, is left out."""
        lag = {}
        for name, group in self._groups.items():
            try:
                behind = await self._behind(group)
            except (KafkaError, OSError) as error:  # a number on a screen: whether Kafka lives is asked elsewhere
                logger.debug("no lag of group=%s: %s", group, error)
                continue
            if behind is not None:
                lag[name] = behind
        return lag

    async def _behind(self, group: str) -> int | None:
        committed = await self._admin.list_consumer_group_offsets(group)
        positions: dict[TopicPartition, int] = {tp: at.offset for tp, at in committed.items() if at.offset >= 0}
        if not positions:
            return None
        ends: dict[TopicPartition, int] = await self._consumer.end_offsets(list(positions))
        return sum(max(0, ends[tp] - position) for tp, position in positions.items())
