"""Consumer groups as the broker knows them: their names, states, members, and what each has committed.

A new broker has no coordinator yet. The question itself makes it set one up, and a coordinator that has just moved
first reads what it has to know. Until then the broker answers that it does not know, which is not the same as nothing.
A broker that is no longer a group's coordinator answers the same. From version 2 of its answer on, one code says so for
all partitions, and aiokafka 0.14 does not look at it: what it returned was that nothing is committed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.consumer import group_coordinator
from aiokafka.coordinator.protocol import ConsumerProtocol
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
    for_code,
)
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.structs import OffsetAndMetadata

TRIES, PAUSE_S = 20, 0.2
"""A new broker of ours could tell after half a second."""
_NOT_YET = (GroupCoordinatorNotAvailableError, GroupLoadInProgressError, NotCoordinatorForGroupError)
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Member:
    """One process that reads as part of a group."""

    client_id: str
    host: str
    partitions: frozenset[TopicPartition] = frozenset()
    """What the group has assigned to it; empty while the group rebalances."""


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """One consumer group."""

    state: str
    """Kafka's word: Stable, Empty, PreparingRebalance, CompletingRebalance, or Dead for a group that is not there."""
    members: tuple[Member, ...] = ()


class _DescribeGroups(DescribeGroupsRequest):  # type: ignore[misc]
    """Asks in version 2 at most: aiokafka 0.14 reads the answer of version 3 by the schema of version 2.

    Each group of that answer ends with four bytes more, so every group after the first is read from the wrong place.
    """

    def prepare(self, versions: dict[int, tuple[int, int]]) -> Any:
        """Return the request for a broker that takes these versions."""
        lowest, newest = versions[self.API_KEY]
        return super().prepare({**versions, self.API_KEY: (lowest, min(newest, 2))})


class _OffsetsByPartition(OffsetFetchRequest):  # type: ignore[misc]
    """Asks in version 1, the last one in which each partition has its error, where aiokafka's consumer looks for it."""

    def prepare(self, versions: dict[int, tuple[int, int]]) -> Any:
        """Return the request for a broker that takes these versions."""
        lowest, newest = versions[self.API_KEY]
        return super().prepare({**versions, self.API_KEY: (lowest, min(newest, 1))})


def see_errors_of_offsets() -> None:
    """Let every consumer of this process raise what keeps a broker from telling committed offsets, or ask again."""
    group_coordinator.OffsetFetchRequest = _OffsetsByPartition


async def list_groups(admin: Any, prefix: str, *, pause_s: float = PAUSE_S) -> list[str]:
    """Return the names of all groups that begin with this, sorted; raises KafkaError."""
    groups = await _asked_again(admin.list_consumer_groups, pause_s=pause_s)
    return sorted(name for name, *_ in groups if name.startswith(prefix))


async def describe_groups(admin: AIOKafkaAdminClient, names: Collection[str]) -> dict[str, ConsumerGroup]:
    """Return each group by its name; raises KafkaError."""
    return {name: await _asked_again(partial(_describe, admin, name)) for name in names}


async def committed_offsets(
    admin: Any, group_id: str, *, pause_s: float = PAUSE_S
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return a group's offsets by partition, none of a group that never committed; raises KafkaError."""
    return await _asked_again(partial(_offsets, admin, group_id), pause_s=pause_s)


async def _asked_again(ask: Callable[[], Awaitable[Answer]], *, pause_s: float = PAUSE_S) -> Answer:
    for _ in range(TRIES):
        try:
            return await ask()
        except _NOT_YET:
            await asyncio.sleep(pause_s)
    return await ask()


async def _offsets(admin: AIOKafkaAdminClient, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
    coordinator = await admin.find_coordinator(group_id)
    answer = await admin._send_request(OffsetFetchRequest(group_id, None), coordinator)
    if answer.error_code:
        raise for_code(answer.error_code)(f"the offsets of group {group_id} cannot be read")
    return {
        TopicPartition(topic, number): OffsetAndMetadata(offset, note)
        for topic, places in answer.topics
        for number, offset, note, _ in places
    }


async def _describe(admin: AIOKafkaAdminClient, name: str) -> ConsumerGroup:
    coordinator = await admin.find_coordinator(name)
    answer = await admin._send_request(_DescribeGroups([name]), coordinator)
    ((code, _, state, protocol_type, _, members),) = answer.groups
    if code:
        raise for_code(code)(f"group {name} cannot be described")
    return ConsumerGroup(
        state,
        tuple(
            Member(client, str(host).lstrip("/"), _read_assignment(assignment, protocol_type))
            for _, client, host, _, assignment in members
        ),
    )


def _read_assignment(assignment: bytes, protocol_type: str) -> frozenset[TopicPartition]:
    """Return the partitions of an assignment; a group of another kind, such as Kafka Connect's, has its own format."""
    if not assignment or protocol_type != ConsumerProtocol.PROTOCOL_TYPE:
        return frozenset()
    return frozenset(ConsumerProtocol.ASSIGNMENT.decode(assignment).partitions())
