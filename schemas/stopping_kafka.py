"""A Kafka client to its end, also where the broker has gone away meanwhile."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiokafka.errors import KafkaError

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0


async def stop_quietly(stop: Callable[[], Awaitable[None]]) -> None:
    """Stop a client that may be broken: what it still wants to say is not waited for long."""
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await stop()
    except (KafkaError, OSError, TimeoutError) as error:
        logger.debug("while stopping a client: %r", error)
    except asyncio.CancelledError:  # aiokafka lets the one of a fetch that it has cancelled itself escape
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
