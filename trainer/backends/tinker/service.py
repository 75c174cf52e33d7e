"""What a training service with the Tinker API is asked. `memory` is the shipped fake, `sdk` reaches a real one.

A *run* is one set of adapter weights with its optimizer, in the service's memory: it begins new, or from a saved state,
and is gone when it is closed. What is saved stays, by its path. The service knows no batch, so nothing here may be
asked twice in the hope that it happens once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

LossName = Literal["importance_sampling", "ppo", "cispo", "dro"]


@dataclass(frozen=True, slots=True)
class LossSequence:
    """One sequence to train on; all four are as long as the sequence without its last token."""

    token_ids: tuple[int, ...]
    """The sequence without its last token."""
    target_ids: tuple[int, ...]
    """The sequence without its first token."""
    logprobs: tuple[float, ...]
    """Of each target when it was sampled; 0 where it was not."""
    advantages: tuple[float, ...]
    """Of each target, times its weight in the loss; 0 where it was not sampled."""


@dataclass(frozen=True, slots=True)
class ServiceLoss:
    name: LossName
    bounds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class AdamSettings:
    learning_rate: float
    beta1: float
    beta2: float
    weight_decay: float
    max_grad_norm: float


@dataclass(frozen=True, slots=True)
class PassOutput:
    """What forward and backward gave."""

    logprobs: tuple[tuple[float, ...], ...]
    """Of each sequence, of each target, before the step."""
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SampledTokens:
    token_ids: tuple[int, ...]
    """The stop token included."""
    logprobs: tuple[float, ...]
    stopped: bool
    """False if it ended by its length."""


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    stop_ids: tuple[int, ...]


class TrainingRun(Protocol):
    """One set of weights in training."""

    @property
    def run_id(self) -> str: ...

    async def forward_backward(self, data: Sequence[LossSequence], loss: ServiceLoss) -> PassOutput:
        """Add to the gradient; the loss is a sum over tokens."""
        ...

    async def optim_step(self, optimizer: AdamSettings) -> Mapping[str, float]:
        """Move the weights by the gradient, and forget it."""
        ...

    async def save_state(self, name: str) -> str:
        """Keep weights and optimizer; return their path."""
        ...

    async def close(self) -> None:
        """Let go of the weights in the service's memory; what was saved stays. Never raises."""
        ...


class VersionSampler(Protocol):
    """Samples from one version."""

    async def sample(self, prompt: Sequence[int], request: SamplingRequest) -> SampledTokens: ...

    async def score(self, prompt: Sequence[int]) -> tuple[float, ...]:
        """Return the log-prob of each token after the first."""
        ...

    async def close(self) -> None:
        """Never raises."""
        ...


class TinkerService(Protocol):
    """A service, for one base model and one rank. Errors are those of `protocol`: a failure may be tried again unless
    the service refused what it was asked.
    """

    async def is_healthy(self) -> bool:
        """Never raises."""
        ...

    async def longest_sequence(self) -> int | None:
        """Return the longest sequence in tokens; None if the service does not say."""
        ...

    async def begin_run(self) -> TrainingRun:
        """Return a run whose adapter adds nothing yet."""
        ...

    async def resume_run(self, state: str) -> TrainingRun:
        """Return a run with the weights and the optimizer of a saved state."""
        ...

    async def saved_paths(self, run_id: str) -> tuple[str, ...]:
        """Return the paths of all that a run has saved completely; none for an unknown run."""
        ...

    async def open_sampler(self, state: str) -> VersionSampler:
        """Sample from the weights of a saved state, whatever is trained meanwhile."""
        ...

    async def delete(self, path: str) -> None:
        """Remove what was saved; harmless if it is gone."""
        ...

    async def close(self) -> None: ...
