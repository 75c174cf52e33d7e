"""One connection to the log and the broker → the picture of a namespace for several askers at once.

An answer or a failure holds for a moment, so that many pages and commands ask the broker once.
"""

import asyncio
import time
from contextlib import AsyncExitStack

from rollbus.health.picture import Picture
from rollbus.health.reading import ANSWER_S, HealthReader, open_health
from rollbus.runtime.health.alarms.limits import AlarmLimits
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.errors import UnavailableError

ANSWER_HOLDS_S, FAILURE_HOLDS_S = 2.0, 15.0


class HealthWatch:
    """Keeps the connection open between questions."""

    def __init__(self, connection: KafkaConnection, namespace: str, limits: AlarmLimits | None = None) -> None:
        """Connect with the first question."""
        self._connection, self._namespace, self._limits = connection, namespace, limits
        self._lock = asyncio.Lock()
        self._stack: AsyncExitStack | None = None
        self._reader: HealthReader | None = None
        self._holds_until_s = 0.0
        self._answer: Picture | UnavailableError | None = None

    async def ask(self) -> Picture:
        """Return the picture; raises UnavailableError."""
        async with self._lock:
            if self._answer is None or time.monotonic() >= self._holds_until_s:
                await self._refresh()
        if isinstance(self._answer, UnavailableError):
            raise self._answer
        assert self._answer is not None
        return self._answer

    async def close(self) -> None:
        """Disconnect."""
        stack, self._stack, self._reader = self._stack, None, None
        if stack is not None:
            await stack.aclose()

    async def _refresh(self) -> None:
        try:
            if self._reader is not None:
                self._answer = await self._reader.picture()
            else:
                self._stack = AsyncExitStack()
                health_context = open_health(self._connection, self._namespace, self._limits)
                async with asyncio.timeout(ANSWER_S):
                    reader = await self._stack.enter_async_context(health_context)
                self._reader, self._answer = reader, await reader.settled_picture()
            self._holds_until_s = time.monotonic() + ANSWER_HOLDS_S
            if self._reader.is_outdated:
                await self.close()  # the next connection finds them
        except (UnavailableError, TimeoutError) as error:
            timeout_error = UnavailableError(f"the broker has not answered for {ANSWER_S:.0f} s")
            self._answer = error if isinstance(error, UnavailableError) else timeout_error
            self._holds_until_s = time.monotonic() + FAILURE_HOLDS_S
            await self.close()
        except BaseException:  # an asker has left, or the look failed: the next question connects again
            await self.close()
            raise
