"""A completion that is asked for, while it is generated and when it is done."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

from rollbus.trainer.art_server.sampler.growing_text import GrowingText
from rollbus.trainer.art_server.sampler.prefixes import NOTHING, Shared
from rollbus.trainer.art_server.sampler.sampling import SamplingParameters

FinishReason = Literal["stop", "length", "abort"]
Alternatives = tuple[tuple[int, float], ...]
"""The most probable tokens at the place of the sampled one, with their log-probs."""
OnToken = Callable[[int, float, Alternatives], None]


@dataclass(frozen=True, slots=True)
class Generation:
    token_ids: tuple[int, ...]
    """The stop token included if it was sampled."""
    logprobs: tuple[float, ...]
    text: str
    """Without the stop token, and cut before a stop string."""
    finish_reason: FinishReason
    version: int
    top_logprobs: tuple[Alternatives, ...] = ()
    prompt_logprobs: tuple[float, ...] = ()
    """Of each prompt token after the first, given those before it, of the model itself; only where asked for."""


@dataclass(slots=True)
class SamplerRequest:
    prompt: Sequence[int]
    parameters: SamplingParameters
    version: int
    future: Future[Generation]
    on_token: OnToken | None
    random_number: Callable[[], float]
    slot: int = -1
    """Its row in the cache pool; -1 while it waits."""
    shared: Shared = NOTHING
    """The beginning of its prompt that was copied from another row."""
    twins: "list[SamplerRequest]" = field(default_factory=list)
    """Requests with the same prompt that came with it: it is read for all of them."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[Alternatives] = field(default_factory=list)
    prompt_logprobs: tuple[float, ...] = ()
    text: GrowingText | None = None
    """Its text so far, if it has stop strings."""
    released: bool = False
