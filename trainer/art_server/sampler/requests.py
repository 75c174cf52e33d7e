"""A completion that is asked for, while it is generated and when it is done; and what samples it.

No torch here: the endpoint serves models that are elsewhere, too.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rollbus.trainer.art_server.sampler.growing_text import GrowingText
from rollbus.trainer.art_server.sampler.prefixes import NOTHING, Shared
from rollbus.trainer.backends.model_settings import LogprobsMode

FinishReason = Literal["stop", "length", "abort"]
Alternatives = tuple[tuple[int, float], ...]
"""The most probable tokens at the place of the sampled one, with their log-probs."""
OnToken = Callable[[int, float, Alternatives], None]


class UnknownVersionError(LookupError):
    """The version is not loaded."""


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    max_tokens: int
    temperature: float = 1.0
    """0, or less than LEAST_TEMPERATURE, takes the most probable token."""
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    top_logprobs: int = 0
    ignore_eos: bool = False
    priority: int = 0
    """Of requests that wait for a row, those with the lowest take the next."""
    scores_prompt: bool = False
    """Give the log-prob of each prompt token too: the prompt is then read alone and whole."""


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
    """Of each token; empty where none were asked for."""
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


class ModelLimits(Protocol):
    """What the endpoint checks requests against."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def max_tokens(self) -> int:
        """Longest prompt and completion together."""
        ...


class TokenSampler(Protocol):
    """What the endpoint asks for tokens."""

    logprobs_mode: LogprobsMode
    steps: int
    tokens: int
    reused_tokens: int
    gives_alternatives: bool
    """Whether it can name the most probable tokens in addition to the sampled one."""

    @property
    def config(self) -> ModelLimits: ...

    def loaded(self) -> tuple[int, ...]:
        """Return the versions that answer requests now."""
        ...

    def count_rows(self) -> tuple[int, int]:
        """Return how many completions are being generated, and how many wait."""
        ...

    def submit(
        self, prompt: Sequence[int], parameters: SamplingParameters, version: int, on_token: OnToken | None = None
    ) -> Future[Generation]:
        """Queue one completion; UnknownVersionError if the version is not loaded. Any thread may call."""
        ...
