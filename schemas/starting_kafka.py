"""A Kafka client to its start, also where whoever waits for it is cancelled meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable

START_GRACE_S = 2.0


async def start_whole(start: Callable[[], Awaitable[None]], *, grace_s: float = START_GRACE_S) -> None:
    """Start a client; on being cancelled, give the start a moment to end before it is cancelled too.

    aiokafka forgets the open connection of a bootstrap that is cancelled; of one that has ended `stop` closes all.
    """
    starting = asyncio.ensure_future(start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        try:
            await asyncio.wait([starting], timeout=grace_s)
        finally:
            starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise
