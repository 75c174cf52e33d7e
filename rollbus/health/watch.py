"""One connection to the log and the broker → the picture of a namespace for several askers at once."""

import asyncio
from contextlib import AsyncExitStack

from rollbus.health.held_answer import HeldAnswer
from rollbus.health.picture import Picture
from rollbus.health.reading import ANSWER_S, HealthReader, open_health
from rollbus.runtime.health.alarms.limits import AlarmLimits
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.errors import UnavailableError


class HealthWatch:
    """Keeps the connection open between questions."""

    def __init__(self, connection: KafkaConnection, namespace: str, limits: AlarmLimits | None = None) -> None:
        """Connect with the first question."""
        self._connection, self._namespace, self._limits = connection, namespace, limits
        self._stack: AsyncExitStack | None = None
        self._reader: HealthReader | None = None
        self._picture = HeldAnswer(self._look)

    async def ask(self) -> Picture:
        """Return the picture; raises UnavailableError."""
        return await self._picture.get()

    async def close(self) -> None:
        """Disconnect."""
        stack, self._stack, self._reader = self._stack, None, None
        if stack is not None:
            await stack.aclose()

    async def _look(self) -> Picture:
        try:
            if self._reader is not None:
                picture = await self._reader.picture()
            else:
                self._stack = AsyncExitStack()
                health_context = open_health(self._connection, self._namespace, self._limits)
                async with asyncio.timeout(ANSWER_S):
                    self._reader = await self._stack.enter_async_context(health_context)
                picture = await self._reader.settled_picture()
            if self._reader.is_outdated:
                await self.close()  # the next connection finds them
        except TimeoutError:
            await self.close()
            raise UnavailableError(f"the broker has not answered for {ANSWER_S:.0f} s") from None
        except BaseException:  # the broker is away, an asker has left, or the look failed: the next one connects again
            await self.close()
            raise
        return picture
