"""Who works on a replay: the one member of a consumer group of its name, so that no other process begins or deletes it.

Replays of one name write into the same topics, each at offsets that it counts for itself. The broker forgets a member
that was killed after SESSION_MS; the next process waits for that, since it joins the group only then.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from rollbus.runtime.kafka.clients import kafka_errors, new_admin, new_consumer, running, start_client, stop_clients
from rollbus.runtime.kafka.groups import describe_groups
from rollbus.schemas.errors import ConfigurationError, FencedError
from rollbus.schemas.topics import REPLAYS
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.replay.plan.plan import namespace_of

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

    async def other_writers(self) -> list[str]:
        """Return who else works on the replay: client and host, a line each."""
        kafka, name = self.settings.kafka, group_of(self.settings, self.name)
        async with running(kafka, new_admin(kafka)) as admin:
            members = list((await describe_groups(admin, [name]))[name].members)
        if own_members := [member for member in members if member.client_id == client_id()]:
            members.remove(own_members[0])
        return [f"{member.client_id} at {member.host}" for member in members]

    async def require_still_held(self) -> None:
        """Raise FencedError if somebody else has begun; one that is refused is given the time to go."""
        for _ in range(LOOKS):
            if not (other_names := await self.other_writers()):
                return
            await asyncio.sleep(LOOK_EVERY_S)
        raise FencedError(
            f"{', '.join(other_names)} has begun to write replay {self.name!r} as well, "
            "since this one did not answer the broker for a while; nothing of it counts. "
            "Let one of them end, and give the command again"
        )


@asynccontextmanager
async def working_on(settings: StreamSettings, name: str) -> AsyncIterator[Lease]:
    """Hold the lease; raises ConfigurationError where another has it, UnavailableError."""
    lease = Lease(settings, name)
    with kafka_errors(settings.kafka):
        consumer = await start_client(_member(settings, name))
    try:
        if other_names := await lease.other_writers():
            raise ConfigurationError(
                f"replay {name!r} is being written by {', '.join(other_names)}; wait for it or stop it first, "
                "or choose another name"
            )
        yield lease
    finally:
        await stop_clients(consumer)


def group_of(settings: StreamSettings, name: str) -> str:
    """Return the group whose member works on a replay."""
    return f"{namespace_of(name, settings.namespace)}replay"


def client_id() -> str:
    """Return what this process is called there."""
    return f"{socket.gethostname()}-{os.getpid()}"


def _member(settings: StreamSettings, name: str) -> Any:
    """Return a consumer that joins the group and reads nothing."""
    return new_consumer(
        settings.kafka,
        REPLAYS.full_name(settings.namespace),
        auto_offset_reset="latest",
        client_id=client_id(),
        group_id=group_of(settings, name),
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=SESSION_MS // 10,
        max_poll_interval_ms=NEVER_MS,
    )
