"""Who works on a replay: the one member of a consumer group of its name, so that nobody else begins or deletes it.

Replays of one name write into the same topics, each at offsets that it counts for itself. The broker forgets a member
that was killed after SESSION_MS; whoever comes next waits for that, since it joins the group only then.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, for_code

from rollbus.schemas.errors import ConfigurationError, FencedError
from rollbus.schemas.topics import REPLAYS
from rollbus.streams.replay.plan import namespace_of
from rollbus.streams.settings import StreamSettings

SESSION_MS = 20_000
NEVER_MS = 2**31 - 1
"""It reads no records, and is not to be taken for one that hangs."""
LOOKS, LOOK_EVERY_S = 50, 0.2
"""How long another may take to see that it is not alone, and to go."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write into a replay's namespace."""

    settings: StreamSettings
    name: str

    async def others(self) -> list[str]:
        """Return who else works on the replay: client and host, a line each."""
        admin = AIOKafkaAdminClient(**self.settings.kafka.client_options())
        try:
            await admin.start()
            (answer,) = await admin.describe_consumer_groups([group_of(self.name)])
            ((code, _, _, _, _, members, *_),) = (tuple(group) for group in answer.groups)
            if code:
                raise for_code(code)
        except (KafkaError, OSError) as error:
            raise self.settings.kafka.unavailable(error) from error
        finally:
            await admin.close()
        told = [f"{client} at {str(host).lstrip('/')}" for _, client, host, *_ in members]
        if (own := client_id()) in [client for _, client, *_ in members]:
            told.remove(next(line for line in told if line.startswith(own)))
        return told

    async def still_held(self) -> None:
        """Raise FencedError if somebody else has begun; one that is refused is given the time to go."""
        for _ in range(LOOKS):
            if not (others := await self.others()):
                return
            await asyncio.sleep(LOOK_EVERY_S)
        raise FencedError(
            f"{', '.join(others)} has begun to write replay {self.name!r} as well, since this one did not answer the "
            "broker for a while; nothing of it counts. Let one of them end, and give the command again"
        )


@asynccontextmanager
async def working_on(settings: StreamSettings, name: str) -> AsyncIterator[Lease]:
    """Hold the lease; raises ConfigurationError where another has it, UnavailableError."""
    lease = Lease(settings, name)
    consumer = _member(settings, name)
    try:
        try:
            await consumer.start()
        except (KafkaError, OSError) as error:
            raise settings.kafka.unavailable(error) from error
        if others := await lease.others():
            raise ConfigurationError(
                f"replay {name!r} is being written by {', '.join(others)}; wait for it or stop it first, "
                "or choose another name"
            )
        yield lease
    finally:
        await consumer.stop()


def group_of(name: str) -> str:
    """Return the group whose member works on a replay."""
    return f"{namespace_of(name)}replay"


def client_id() -> str:
    """Return what this process is called there."""
    return f"{socket.gethostname()}-{os.getpid()}"


def _member(settings: StreamSettings, name: str) -> Any:
    """Return a consumer that joins the group and reads nothing."""
    return AIOKafkaConsumer(
        REPLAYS.full_name(settings.namespace),
        **settings.kafka.client_options(),
        client_id=client_id(),
        group_id=group_of(name),
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=SESSION_MS // 10,
        max_poll_interval_ms=NEVER_MS,
    )
