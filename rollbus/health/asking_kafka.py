"""What this user may do at the broker, and the broker's clock, by trying.

It deletes a key that never was, reads, and asks for lag.

The broker tells nobody but an administrator what is allowed; a refusal says it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from aiokafka import TopicPartition

from rollbus.runtime.kafka.clients import new_admin, new_producer, running
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.lag import open_lag
from rollbus.runtime.kafka.partitions import count_partitions
from rollbus.runtime.kafka.reading import read_from
from rollbus.schemas.errors import RollbusError
from rollbus.schemas.topics import HEARTBEATS, TRAINING_STEPS
from rollbus.schemas.wall_clock import wall_clock_ms

ANSWER_S = 10.0
BROKERS_CLOCK = 1
"""The type of a timestamp that the broker gave."""


@dataclass(slots=True)
class Permissions:
    """What was tried."""

    refused: dict[str, str] = field(default_factory=dict)
    """What may not be done, and what the broker says."""
    ahead_ms: int | None = None
    """How far this machine's clock is ahead of the broker's; None if the topic keeps writers' clocks."""


async def ask_permissions(connection: KafkaConnection, namespace: str) -> Permissions:
    """Try what an operator needs; raises UnavailableError if the broker is away."""
    permissions = Permissions()

    async def write() -> None:
        async with running(connection, new_producer(connection, linger_ms=0)) as producer:
            before_ms = wall_clock_ms()
            place = await producer.send_and_wait(HEARTBEATS.full_name(namespace), None, b"doctor")
            if place.timestamp_type == BROKERS_CLOCK:
                permissions.ahead_ms = (before_ms + wall_clock_ms()) // 2 - place.timestamp

    async def read() -> None:
        place = TopicPartition(TRAINING_STEPS.full_name(namespace), 0)
        async with aclosing(read_from(connection, {place: 0}, newest=1)) as records:
            async for _ in records:
                return

    async def see_lag() -> None:
        async with open_lag(connection) as lag:
            await lag.read_namespace(namespace)

    tried: dict[str, Callable[[], Awaitable[None]]] = {
        "write heartbeats": write,
        "read training steps": read,
        "see the lag of consumer groups": see_lag,
    }
    async with running(connection, new_admin(connection), what="asking for permissions") as admin:
        if not await count_partitions(admin, [HEARTBEATS.full_name(namespace)]):
            return permissions  # a client would look for it many times a second
    for act_name, act in tried.items():
        try:
            await asyncio.wait_for(act(), ANSWER_S)
        except TimeoutError:
            permissions.refused[act_name] = f"no answer within {ANSWER_S:.0f} s"
        except RollbusError as error:
            permissions.refused[act_name] = str(error)
    return permissions
