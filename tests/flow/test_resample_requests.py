"""Requests are committed as they are taken."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError
from aiokafka.structs import OffsetAndMetadata

from rollbus.resample.requests import Requests
from rollbus.runtime.kafka.positions import MarkedConsumer
from rollbus.schemas.codec import encode
from rollbus.schemas.records.events import Message
from rollbus.schemas.records.groups import ResampleRequested
from tests.positions import new_positions

WRITTEN_MS = 5_000


@dataclass(slots=True)
class FetchedRequests:
    """A consumer of one partition with so many records, that says when it has no more."""

    values: list[bytes]
    committed: list[int] = field(default_factory=list)
    offset: int = -1
    over: asyncio.Event = field(default_factory=asyncio.Event)
    others: frozenset[int] = frozenset()
    """Offsets of which another member has been given the partition meanwhile."""

    async def getone(self) -> Any:
        self.offset += 1
        if self.offset == len(self.values):
            self.over.set()
            await asyncio.Event().wait()
        value = self.values[self.offset]
        return SimpleNamespace(topic="t", partition=0, offset=self.offset, value=value, timestamp=WRITTEN_MS, key=b"k")

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition("t", 0)}

    async def commit(self, positions: dict[Any, OffsetAndMetadata]) -> None:
        if self.offset in self.others:
            raise CommitFailedError("the group has rebalanced")
        self.committed += [position.offset for position in positions.values()]


def request(attempt: int, *, text: str = "", run_id: str = "main") -> ResampleRequested:
    defaults: dict[str, Any] = {"trajectory_id": "t", "task": "play", "requested_at_ms": 0, "useful_until_ms": 10}
    messages = (Message(role="user", content=text),)
    return ResampleRequested(episode_id=f"r{attempt}", attempt=attempt, run_id=run_id, messages=messages, **defaults)


async def take_requests(consumer: FetchedRequests) -> list[ResampleRequested]:
    """What comes out before nothing more does."""
    stopping, requests = (
        asyncio.create_task(consumer.over.wait()),
        Requests(consumer, MarkedConsumer(consumer, new_positions), "main"),
    )
    requests_taken = []
    while (resample := await requests.next(stopping)) is not None:
        assert resample.written_ms == WRITTEN_MS
        requests_taken.append(resample.request)
    return requests_taken


async def test_only_requests_of_the_run_are_made_and_all_offsets_are_committed() -> None:
    large, other = request(1, text="image" * 400_000), request(2, run_id="other")
    consumer = FetchedRequests([encode(large), encode(other), b"poison", encode(request(3))])
    assert await take_requests(consumer) == [large, request(3)]
    assert consumer.committed == [1, 2, 3, 4]


async def test_a_request_that_another_agent_is_given_meanwhile_is_left_to_it() -> None:
    consumer = FetchedRequests([encode(request(number)) for number in range(1, 4)], others=frozenset({1}))
    assert await take_requests(consumer) == [request(1), request(3)]
    assert consumer.committed == [1, 3]
