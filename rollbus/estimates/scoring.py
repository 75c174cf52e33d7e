"""Token ids in, their log-probs under a version out: asked of the model endpoint, ours or vLLM's.

`POST /v1/completions` with `echo` and `max_tokens: 0` samples nothing and says how likely each token of the prompt is.
The answers are of the model itself, at temperature 1.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import httpx

from rollbus.runtime.cancelling import all_or_none
from rollbus.runtime.http.loopback import may_use_proxy
from rollbus.schemas.errors import ConfigurationError, UnavailableError

SEQUENCES_AT_ONCE = 16
REQUESTS_AT_ONCE = 2
"""The endpoint also answers agents: an estimate may take its time."""
TIMEOUT_S = 300.0
RETRY_PAUSES_S = (1.0, 5.0, 15.0)
LARGEST = 1e-4
"""Rounding may leave a log-prob above 0 by less."""


class Scorer(Protocol):
    """Says how likely a version finds token sequences."""

    async def score(self, model: str, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return for each sequence the log-prob of every token after its first."""
        ...


class EndpointScorer:
    """Asks an OpenAI-compatible endpoint."""

    def __init__(
        self, base_url: str, api_key: str = "none", *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """`base_url` ends in /v1."""
        self._url, self._sleep = base_url.rstrip("/"), sleep
        self._client = httpx.AsyncClient(
            headers={"authorization": f"Bearer {api_key}"}, timeout=TIMEOUT_S, trust_env=may_use_proxy(base_url)
        )
        self._gate = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def score(self, model: str, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Ask for all of them, some at a time."""
        parts = [sequences[at : at + SEQUENCES_AT_ONCE] for at in range(0, len(sequences), SEQUENCES_AT_ONCE)]
        answers = await all_or_none(self._ask(model, part) for part in parts)
        return [log_probs for answer in answers for log_probs in answer]

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _ask(self, model: str, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        body = {"model": model, "prompt": [list(sequence) for sequence in sequences], "max_tokens": 0, "echo": True,
                "logprobs": 0}  # fmt: skip
        async with self._gate:
            answer = await self._post(model, body)
        try:
            choices = sorted(answer.json()["choices"], key=lambda choice: int(choice["index"]))
            scored = [_read_logprobs(choice["logprobs"]["token_logprobs"]) for choice in choices]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{self._url} does not score prompts: {error!r} in its answer to echo") from error
        if [len(log_probs) for log_probs in scored] != [len(sequence) - 1 for sequence in sequences]:
            raise ConfigurationError(f"{self._url} scores other tokens than those it was given; is it another model's?")
        return scored

    async def _post(self, model: str, body: dict[str, Any]) -> httpx.Response:
        problem = ""
        for pause_s in (0.0, *RETRY_PAUSES_S):
            if pause_s:
                await self._sleep(pause_s)
            try:
                answer = await self._client.post(f"{self._url}/completions", json=body)
            except httpx.HTTPError as error:
                problem = repr(error)
                continue
            if answer.is_success:
                return answer
            problem = f"{answer.status_code} {answer.text[:300]}"
            if answer.status_code == 404:
                raise ConfigurationError(
                    f"{self._url} serves no {model}: its checkpoint is gone, or the server has another name for it "
                    f"({problem})"
                )
            if answer.status_code < 500 and answer.status_code != 429:
                raise ConfigurationError(f"{self._url} does not score prompts of {model}: {problem}")
        raise UnavailableError(f"{self._url} did not score {model}: {problem}")


def _read_logprobs(values: Sequence[Any]) -> list[float]:
    """Return those after the first token, which has none."""
    logprobs = [min(0.0, float(value)) if value <= LARGEST else math.nan for value in values[1:]]
    if not all(map(math.isfinite, logprobs)):
        raise ValueError("a log-prob is not a finite number of at most 0")
    return logprobs
