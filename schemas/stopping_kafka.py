"""A Kafka client to its end, also where the broker has gone away meanwhile."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiokafka.errors import KafkaError

from rollbus.schemas.cancelling import is_being_cancelled

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0


async def stop_quietly(*stops: Callable[[], Awaitable[None]]) -> None:
    """Stop clients that may be broken, each whatever becomes of those before it: what one still wants to say is not
    waited for long.
    """
    if not stops:
        return
    try:
        await _stop_quietly(stops[0])
    finally:
        await stop_quietly(*stops[1:])


async def _stop_quietly(stop: Callable[[], Awaitable[None]]) -> None:
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await stop()
    except (KafkaError, OSError, TimeoutError) as error:
        logger.debug("while stopping a client: %r", error)
    except asyncio.CancelledError:  # aiokafka lets the one of a fetch that it has cancelled itself escape
        if is_being_cancelled():
            raise
