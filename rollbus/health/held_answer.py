"""A question that costs the broker something → one answer for all who ask it at about the same time.

Pages and commands ask every few seconds, each for itself. An answer holds for a moment, and so does a failure.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from rollbus.schemas.errors import UnavailableError

AnswerT = TypeVar("AnswerT")

ANSWER_HOLDS_S, FAILURE_HOLDS_S = 2.0, 15.0
"""How long an answer, and how long a failure, is repeated: several browsers ask, and each redraw asks too."""


class HeldAnswer(Generic[AnswerT]):
    """The newest answer to one question."""

    def __init__(self, ask: Callable[[], Awaitable[AnswerT]]) -> None:
        """Ask nothing yet; `ask` returns an answer or raises UnavailableError. What else it raises is not held."""
        self._ask = ask
        self._lock = asyncio.Lock()
        self._holds_until_s = 0.0
        self._outcome: AnswerT | UnavailableError | None = None

    async def get(self) -> AnswerT:
        """Return the answer that holds, or ask; raises UnavailableError."""
        async with self._lock:
            outcome = self._outcome
            if outcome is None or time.monotonic() >= self._holds_until_s:
                outcome = self._outcome = await self._find_outcome()
        if isinstance(outcome, UnavailableError):
            raise outcome
        return outcome

    async def _find_outcome(self) -> AnswerT | UnavailableError:
        outcome: AnswerT | UnavailableError
        try:
            outcome, holds_s = await self._ask(), ANSWER_HOLDS_S
        except UnavailableError as error:
            outcome, holds_s = error, FAILURE_HOLDS_S
        self._holds_until_s = time.monotonic() + holds_s
        return outcome
