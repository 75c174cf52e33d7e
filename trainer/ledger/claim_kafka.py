"""Who trains a model: a claim in a consumer group of the model, which only one process at a time may write.

A trainer that was stopped for a while must not fence its healthy successor when it goes on. So each trainer claims the
model when it opens the log, in a transaction of the model's producer, and looks at the claim before it opens the log
again: if another process has claimed the model since, it ends. A new process waits while the one that claimed the model
is a living member of the group. An operator's command waits for nobody: it takes over, and the trainer ends.
"""

import asyncio
import logging
import os
import socket
import uuid

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.structs import OffsetAndMetadata

from rollbus.runtime.kafka.clients import new_admin, new_consumer, start_client, stop_clients
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.groups import committed_offsets, describe_groups
from rollbus.runtime.kafka.lag import CLAIMS
from rollbus.schemas.errors import FencedError

logger = logging.getLogger(__name__)

SESSION_MS = 6_000
"""How long a trainer may be silent before another takes over, as with workers; brokers allow no less."""
NEVER_MS = 2**31 - 1
"""It reads no records, and is not to be taken for one that hangs."""
LOOK_EVERY_S = 1.0
"""Between looks at whether the other still lives."""


class ModelClaim:
    """The claim on one model, as one process sees it."""

    def __init__(
        self, connection: KafkaConnection, place: TopicPartition, prefix: str, *, model: str, run: str
    ) -> None:
        """`place` is the partition by which the group is told apart; the group reads nothing of it."""
        self._connection, self._place, self._model = connection, place, model
        self.group = f"{prefix}{CLAIMS}{model}"
        self.name = f"{run}@{socket.gethostname()}:{os.getpid()}-{uuid.uuid4().hex[:8]}"
        """What this process is called in the group and in the claim."""
        self._has_claimed = False
        self._admin: AIOKafkaAdminClient | None = None
        self._member: AIOKafkaConsumer | None = None

    async def stand_by(self) -> None:
        """Join the group, and return once no other trainer of the model lives."""
        self._member = await start_client(self._new_member())
        reported = ""
        while (other := await self._find_other()) is not None:
            if other != reported:
                logger.info("model %s is trained by %s; waiting until it ends", self._model, other)
            reported = other
            await asyncio.sleep(LOOK_EVERY_S)

    async def require(self) -> None:
        """Raise FencedError if another process has claimed the model since this one did."""
        claimed_by = await self._read_claim()
        if self._has_claimed and claimed_by != self.name:
            raise FencedError(
                f"a newer trainer of this model has taken over, or a rollback: {claimed_by or 'a tool'} has claimed "
                f"{self._model!r}, and this one ends; started again, it goes on from there once the other has ended"
            )

    async def claim(self, producer: AIOKafkaProducer) -> None:
        """Claim the model; the broker refuses a producer that another has fenced."""
        await self.require()
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({self._place: OffsetAndMetadata(0, self.name)}, self.group)
        await producer.commit_transaction()
        self._has_claimed = True

    async def disconnect(self) -> None:
        """Let the connection for questions go; the next question opens another."""
        admin, self._admin = self._admin, None
        await stop_clients(admin)

    async def leave(self) -> None:
        """Leave the group; the claim stays."""
        member, self._member = self._member, None
        await stop_clients(member)
        await self.disconnect()

    async def _connect(self) -> AIOKafkaAdminClient:
        if self._admin is None:
            self._admin = await start_client(new_admin(self._connection))
        return self._admin

    async def _read_claim(self) -> str:
        committed = (await committed_offsets(await self._connect(), self.group)).get(self._place)
        return committed.metadata if committed is not None else ""

    async def _find_other(self) -> str | None:
        """Return the living process that claimed the model or, without one, that the broker prefers to this one."""
        assert self._member is not None
        members = (await describe_groups(await self._connect(), [self.group]))[self.group].members
        living = {member.client_id: f"{member.client_id} at {member.host}" for member in members}
        claimed_by = await self._read_claim()
        if claimed_by != self.name and claimed_by in living:
            return living[claimed_by]
        if claimed_by == self.name or self._place in self._member.assignment():
            return None
        preferred = [living[member.client_id] for member in members if self._place in member.partitions]
        return preferred[0] if preferred else "one of several that have just started"

    def _new_member(self) -> AIOKafkaConsumer:
        return new_consumer(
            self._connection,
            self._place.topic,
            auto_offset_reset="latest",
            client_id=self.name,
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=SESSION_MS // 10,
            max_poll_interval_ms=NEVER_MS,
        )
