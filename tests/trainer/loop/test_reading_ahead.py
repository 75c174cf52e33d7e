"""Reading ahead: the next step finds its batch and payload at once, and nothing that the log says is missed."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

import pytest

from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.records.steps import StepCompleted
from rollbus.schemas.records.trajectories import Location, Trajectory
from rollbus.schemas.topics import SCORES
from rollbus.trainer.backends.memory import MemoryBackend
from rollbus.trainer.ledger.log import ReceivedBatch
from rollbus.trainer.loop.inspection import Inspected
from rollbus.trainer.loop.reading_ahead import ReadingAhead
from tests.builders import make_score
from tests.trainer.log_memory import MemoryLog
from tests.trainer.scenario import World, check_exactly_once


class Counted(MemoryLog):
    """Counts what is asked of it."""

    fetched = 0
    away = False

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        self.fetched += 1
        if self.away:
            raise UnavailableError("no answer")
        return await super().fetch(locations)


def counted(world: World) -> Counted:
    return Counted(world.broker, run_id="main", model="agent")


async def ready(log: ReadingAhead) -> None:
    """Let it read as far as it can."""
    log.begin()
    for _ in range(20):
        await asyncio.sleep(0.001)


@asynccontextmanager
async def reading(world: World, *, away: bool = False) -> AsyncIterator[tuple[ReadingAhead, Counted]]:
    """Yield what has read ahead in a log, and the log."""
    inner = counted(world)
    inner.away = away
    log = ReadingAhead(inner)
    await log.open()
    try:
        await ready(log)
        yield log, inner
    finally:
        await log.close()


async def fetched(log: ReadingAhead, received: ReceivedBatch) -> Mapping[Location, Inspected]:
    return await log.payload([member.location for group in received.batch.groups for member in group.members])


async def test_a_batch_and_its_payload_are_there_before_they_are_asked_for() -> None:
    world = World()
    batches = world.add_batches(2)
    async with reading(world) as (log, inner):
        assert inner.fetched == 1
        assert not await log.at_end()
        received = await log.next_batch(0.0)
        assert received is not None
        assert received.batch == batches[0]
        assert len(await fetched(log, received)) == 5
        assert inner.fetched == 1
        await ready(log)
        assert not await log.at_end(), "the last batch has been read and is still to come"
        after = await log.next_batch(0.0)
        assert after is not None
        assert after.batch == batches[1]
        await fetched(log, after)
        assert inner.fetched == 2
        assert await log.at_end()


async def test_payload_read_ahead_is_not_given_for_another_batch() -> None:
    world = World()
    world.add_batches(1)
    async with reading(world) as (log, inner):
        assert await log.next_batch(0.0) is not None
        other = world.stored("other", (0.0, 1.0))
        assert len(await log.payload([member.location for member in other.members])) == 2
        assert inner.fetched == 2


async def test_a_batch_that_comes_during_a_look_reaches_the_waiting_caller() -> None:
    world = World()
    async with reading(world) as (log, _):
        waiting = asyncio.create_task(log.next_batch(5.0))
        await asyncio.sleep(0.01)
        (batch,) = world.add_batches(1)
        received_batch = await waiting
        assert received_batch is not None
        assert received_batch.batch == batch


async def test_a_reopened_log_goes_back_to_the_committed_offset() -> None:
    world = World()
    batches = world.add_batches(1)
    async with reading(world) as (log, _):
        await log.open()
        received_batch = await log.next_batch(0.0)
        assert received_batch is not None
        assert received_batch.batch == batches[0]


async def test_payload_that_cannot_be_read_ahead_is_read_when_it_is_needed() -> None:
    world = World()
    world.add_batches(1)
    async with reading(world, away=True) as (log, inner):
        received = await log.next_batch(0.0)
        assert received is not None
        with pytest.raises(UnavailableError):
            await fetched(log, received)
        inner.away = False
        assert len(await fetched(log, received)) == 5


async def test_an_episode_excluded_after_its_payload_was_read_is_still_refused() -> None:
    world = World(backend=MemoryBackend(step_s=0.5))
    batches = world.add_batches(2)
    log = counted(world)
    running = asyncio.create_task(world.trainer(log=log).run(until_idle=True))
    while log.fetched < 2:  # noqa: ASYNC110 - the second batch is read while the first is trained
        await asyncio.sleep(0.001)
    assert not world.steps()
    world.broker.append(SCORES, make_score("b1g0-2", excluded=True))
    await running
    check_exactly_once(world, batches)
    second_step = world.steps()[1]
    assert isinstance(second_step, StepCompleted)
    assert {member.trajectory_id for member in second_step.dropped if member.reason == "excluded"} == {"b1g0-2"}
