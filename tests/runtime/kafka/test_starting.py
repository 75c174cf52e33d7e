"""A start that is cancelled ends before its caller does, so that there is nothing left that nobody closes."""

import asyncio

import pytest

from rollbus.runtime.kafka.clients import start_uncancelled


async def test_a_failed_start_is_reported() -> None:
    async def fails() -> None:
        raise OSError("nobody listens")

    with pytest.raises(OSError, match="nobody listens"):
        await start_uncancelled(fails)


@pytest.mark.parametrize("failure", [None, OSError("gone")])
async def test_a_cancelled_caller_waits_for_the_start_and_hides_its_failure(
    failure: OSError | None,
) -> None:
    answered, begun, moments = asyncio.Event(), asyncio.Event(), list[str]()

    async def start() -> None:
        begun.set()
        await answered.wait()
        moments.append("ended")
        if failure is not None:
            raise failure

    caller = asyncio.create_task(start_uncancelled(start))
    await begun.wait()
    caller.cancel()
    await asyncio.sleep(0)
    answered.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert moments == ["ended"]


async def test_a_start_that_hangs_is_cancelled_with_its_caller() -> None:
    moments = list[str]()

    async def hangs() -> None:
        try:
            moments.append("begun")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            moments.append("cancelled")
            raise

    caller = asyncio.create_task(start_uncancelled(hangs, grace_s=0.01))
    while not moments:  # noqa: ASYNC110 - one turn of the loop
        await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert moments == ["begun", "cancelled"]
