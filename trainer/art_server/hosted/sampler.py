"""Tokens for the endpoint, from a service with the Tinker API: several versions at once, each opened when asked for.

The service samples until an end token or the length; a stop string is looked for here, and what follows it is cut off.
So tokens and log-probs are those that were sampled, up to the one that completed the stop string.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rollbus.schemas.errors import UnavailableError
from rollbus.trainer.art_server.sampler.growing_text import GrowingText, find_stop
from rollbus.trainer.art_server.sampler.requests import (
    FinishReason,
    Generation,
    OnToken,
    SamplingParameters,
    UnknownVersionError,
)
from rollbus.trainer.backends.model_settings import LEAST_TEMPERATURE, LogprobsMode
from rollbus.trainer.backends.tinker.backend import TinkerBackend
from rollbus.trainer.backends.tinker.service import SampledTokens, SamplingRequest, VersionSampler

logger = logging.getLogger(__name__)

SEEDS = 1 << 31
"""Services take seeds of a signed 32-bit number."""


@dataclass(frozen=True, slots=True)
class HostedLimits:
    vocabulary: int
    max_tokens: int


class HostedSampler:
    """Fulfils `TokenSampler`. Its work is done on the loop that it was made on; any thread may ask."""

    logprobs_mode: LogprobsMode = "raw"
    gives_alternatives = False
    reused_tokens = 0

    def __init__(
        self, backend: TinkerBackend, tokenizer: Any, *, stop_ids: frozenset[int], limits: HostedLimits, keep: int
    ) -> None:
        self.config = limits
        self.steps = self.tokens = 0
        """Requests to the service, and tokens that it sampled."""
        self._backend, self._tokenizer = backend, tokenizer
        self._stop_ids = stop_ids | {int(tokenizer.eos_token_id)}
        self._loop = asyncio.get_running_loop()
        self._opening = asyncio.Lock()
        self._samplers: dict[int, VersionSampler] = {}
        """By version: what its next request uses."""
        self._users = Counter[VersionSampler]()
        """Requests that use each sampler which is not closed, also one that its version has no more."""
        self._pinned: set[int] = set()
        self._keep = keep
        self._recent: list[int] = []
        """The versions that were asked for last, the newest at the end."""

    def loaded(self) -> tuple[int, ...]:
        """Return the open versions."""
        return tuple(sorted(self._samplers))

    def count_rows(self) -> tuple[int, int]:
        """Return how many completions the service is asked for; it says nothing of those that wait."""
        return sum(self._users.values()), 0

    def submit(
        self, prompt: Sequence[int], parameters: SamplingParameters, version: int, on_token: OnToken | None = None
    ) -> Future[Generation]:
        """Ask for one completion."""
        if not self._backend.is_stored(version):
            raise UnknownVersionError(version)
        return asyncio.run_coroutine_threadsafe(self._generate(prompt, parameters, version, on_token), self._loop)

    def load_version(self, version: int) -> bool:
        """Have a version answer requests; False if there is none. Not from the sampler's own loop."""
        return asyncio.run_coroutine_threadsafe(self.open(version), self._loop).result()

    async def open(self, version: int) -> bool:
        """Have a version answer requests; False if there is none."""
        if not self._backend.is_stored(version):
            return False
        await self._give_back(await self._take(version))
        return True

    async def pin(self, versions: Iterable[int]) -> None:
        """Keep these versions open, in place of those pinned before."""
        self._pinned = set(versions)
        await self._close_unused()

    async def close(self) -> None:
        """Close every version."""
        self._pinned.clear()
        self._recent.clear()
        self._samplers.clear()
        samplers, self._users = self._users, Counter()
        for sampler in samplers:
            await sampler.close()

    async def _generate(
        self, prompt: Sequence[int], parameters: SamplingParameters, version: int, on_token: OnToken | None
    ) -> Generation:
        request = SamplingRequest(
            max_tokens=parameters.max_tokens,
            temperature=0.0 if parameters.temperature < LEAST_TEMPERATURE else parameters.temperature,
            top_p=parameters.top_p,
            seed=parameters.seed % SEEDS,
            stop_ids=() if parameters.ignore_eos else tuple(sorted(self._stop_ids)),
        )
        sampler = await self._take(version)
        try:
            scores = await sampler.score(prompt) if parameters.scores_prompt else ()
            sampled = await sampler.sample(prompt, request)
        except UnavailableError:  # the service may have been restarted
            if self._samplers.get(version) is sampler:
                del self._samplers[version]
            raise
        finally:
            await self._give_back(sampler)
        self.steps += 1
        self.tokens += len(sampled.token_ids)
        answer = self._cut(sampled, parameters, version, scores)
        if on_token is not None:
            for token_id, logprob in zip(answer.token_ids, answer.logprobs, strict=True):
                on_token(token_id, logprob, ())
        return answer

    async def _take(self, version: int) -> VersionSampler:
        """Return a version's sampler, opened if it is not; it stays open until it is given back."""
        async with self._opening:
            if version not in self._samplers:
                self._samplers[version] = await self._backend.open_sampler(version)
            self._recent = [*(recent for recent in self._recent if recent != version), version][-self._keep :]
            sampler = self._samplers[version]
            self._users[sampler] += 1
            return sampler

    async def _give_back(self, sampler: VersionSampler) -> None:
        if sampler in self._users:  # else it was closed with all others
            self._users[sampler] -= 1
        await self._close_unused()

    def _cut(
        self, sampled: SampledTokens, parameters: SamplingParameters, version: int, scores: tuple[float, ...]
    ) -> Generation:
        """Return the answer, up to its first stop string."""
        count, at = len(sampled.token_ids), None
        reason: FinishReason = "stop" if sampled.stopped else "length"
        growing = GrowingText(self._tokenizer)
        for place, token_id in enumerate(sampled.token_ids if parameters.stop else (), start=1):
            if token_id in self._stop_ids and not parameters.ignore_eos:
                break
            growing.add(token_id)
            if find_stop(growing.text, parameters.stop) is not None:
                at = find_stop(self._decode(sampled.token_ids[:place]), parameters.stop)
                if at is not None:
                    count, reason = place, "stop"
                    break
        token_ids = sampled.token_ids[:count]
        text = self._decode(token_ids)[:at]
        return Generation(token_ids, sampled.logprobs[:count], text, reason, version, (), scores)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    async def _close_unused(self) -> None:
        """Close what nobody uses: versions that are neither pinned nor recent, and samplers that failed."""
        kept_versions = {*self._pinned, *self._recent}
        for version, sampler in list(self._samplers.items()):
            if version not in kept_versions and not self._users[sampler]:
                del self._samplers[version]
        kept_samplers = set(self._samplers.values())
        unused_samplers = [
            sampler for sampler, users in self._users.items() if not users and sampler not in kept_samplers
        ]
        for sampler in unused_samplers:
            del self._users[sampler]  # before anything is waited for: another request looks for what is unused, too
        for sampler in unused_samplers:
            await sampler.close()
