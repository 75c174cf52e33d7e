"""A start that is cancelled ends before its caller does, so that there is nothing left that nobody closes."""

import asyncio

import pytest

from rollbus.schemas.kafka.clients import start_uncancelled


async def test_a_start_that_fails_says_so() -> None:
    async def fails() -> None:
        raise OSError("nobody listens")

    with pytest.raises(OSError, match="nobody listens"):
        await start_uncancelled(fails)


async def test_a_cancelled_caller_lets_the_start_end_first() -> None:
    answered, told = asyncio.Event(), list[str]()

    async def start() -> None:
        told.append("begun")
        await answered.wait()
        told.append("ended")

    caller = asyncio.create_task(start_uncancelled(start))
    while not told:  # noqa: ASYNC110 - one turn of the loop
        await asyncio.sleep(0)
    caller.cancel()
    await asyncio.sleep(0)
    answered.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert told == ["begun", "ended"]


async def test_a_start_that_hangs_is_cancelled_with_its_caller() -> None:
    told = list[str]()

    async def hangs() -> None:
        try:
            told.append("begun")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    caller = asyncio.create_task(start_uncancelled(hangs, grace_s=0.01))
    while not told:  # noqa: ASYNC110 - one turn of the loop
        await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert told == ["begun", "cancelled"]


async def test_a_start_that_fails_after_its_caller_was_cancelled_is_heard_by_nobody() -> None:
    answered, begun = asyncio.Event(), asyncio.Event()

    async def fails_late() -> None:
        begun.set()
        await answered.wait()
        raise OSError("gone")

    caller = asyncio.create_task(start_uncancelled(fails_late))
    await begun.wait()
    caller.cancel()
    await asyncio.sleep(0)
    answered.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
