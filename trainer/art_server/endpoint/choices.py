"""The choices of one request on their way through the sampler: `n` for each prompt.

Choice `i` of a prompt depends on the request's seed and on `i` alone, and the first is what n=1 gives.
"""

import asyncio
import functools
import time
import uuid
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rollbus.trainer.art_server.endpoint.openai_api import RequestError
from rollbus.trainer.art_server.sampler.requests import Alternatives, Generation, SamplingParameters, TokenSampler

T = TypeVar("T")

SEEDS = 1 << 64
"""A generator takes no sign: −5 would be 5."""
SEED_STEP = 1 << 32
"""Between the seeds of a prompt's choices; clients ask for smaller ones."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token on its way to a client that streams."""

    token_id: int
    logprob: float
    alternatives: Alternatives


class Choices:
    """Submitted by `submit`; awaited one by one, or token by token from `tokens`."""

    def __init__(self, version: int, prompts: Sequence[Sequence[int]], seed: int, *, streaming: bool) -> None:
        self.id = f"cmpl-{uuid.uuid4().hex}"
        self.created_s = int(time.time())
        self.version, self.prompts, self.seed = version, prompts, seed
        self.tokens: asyncio.Queue[tuple[int, Sampled | None]] = asyncio.Queue()
        """Choice and token, None at its end, if the request streams."""
        self._loop, self._streaming = asyncio.get_running_loop(), streaming
        self._futures: list[asyncio.Future[Generation]] = []

    @property
    def count(self) -> int:
        return len(self._futures)

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    def prompt_of(self, index: int) -> Sequence[int]:
        return self.prompts[index * len(self.prompts) // self.count]

    def submit(self, sampler: TokenSampler, parameters: SamplingParameters, n: int) -> None:
        for prompt in self.prompts:
            for number in range(n):
                index = len(self._futures)
                choice_parameters = replace(parameters, seed=self.seed % SEEDS + number * SEED_STEP)
                put = functools.partial(self._put_token, index) if self._streaming else None
                future = asyncio.wrap_future(
                    sampler.submit(prompt, choice_parameters, self.version, put), loop=self._loop
                )
                if self._streaming:
                    future.add_done_callback(functools.partial(self._put_end, index))
                self._futures.append(future)

    async def answers(self, *, unless: Awaitable[object]) -> list[Generation] | None:
        """Return all answers; None if `unless` ends first: the client is gone. Then, and where a choice fails, no other
        one goes on.
        """
        gone, answering = asyncio.ensure_future(unless), asyncio.ensure_future(self._all())
        try:
            await asyncio.wait({gone, answering}, return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() else None
        finally:
            gone.cancel()
            answering.cancel()
            self.cancel()

    async def _all(self) -> list[Generation]:
        return await self._wait_for(asyncio.gather(*self._futures))

    async def answer(self, index: int) -> Generation:
        return await self._wait_for(self._futures[index])

    async def _wait_for(self, answering: Awaitable[T]) -> T:
        try:
            return await answering
        except asyncio.CancelledError:
            self.cancel()
            raise
        except Exception as error:
            raise RequestError(500, f"generation failed: {error}") from error

    def cancel(self) -> None:
        for future in self._futures:
            future.cancel()

    def _put_token(self, index: int, token_id: int, logprob: float, alternatives: Alternatives) -> None:
        if not self._loop.is_closed():
            sampled = Sampled(token_id, logprob, alternatives)
            self._loop.call_soon_threadsafe(self.tokens.put_nowait, (index, sampled))

    def _put_end(self, index: int, future: Any) -> None:
        self.tokens.put_nowait((index, None))
