"""The shipped fake of a Tinker service: it trains and samples a model that has one logit for each token.

Every token has the same distribution, whatever came before it, so losses, gradients, AdamW, sampling and log-probs are
those of a real service, in a few lines. What is saved outlives the backend that saved it, as long as this object does.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rollbus.schemas.errors import RejectedError, UnavailableError
from rollbus.trainer.backends.tinker.figures import clip_ratio
from rollbus.trainer.backends.tinker.service import (
    AdamSettings,
    LossSequence,
    PassOutput,
    SampledTokens,
    SamplingRequest,
    ServiceLoss,
)

ADAM_EPSILON = 1e-12
Fault = Callable[[str], None]
"""Called before and after each call with its name and `before` or `after`, such as `optim_step after`; may raise."""


@dataclass(slots=True)
class ModelState:
    """Weights and optimizer."""

    logits: list[float]
    first_moments: list[float]
    second_moments: list[float]
    steps: int = 0

    def copy(self) -> "ModelState":
        """Return a state that shares nothing with this one."""
        return ModelState(self.logits[:], self.first_moments[:], self.second_moments[:], self.steps)

    def log_normaliser(self, temperature: float = 1.0) -> float:
        """Return the logarithm of the sum over all tokens."""
        highest = max(self.logits) / temperature
        return highest + math.log(math.fsum(math.exp(logit / temperature - highest) for logit in self.logits))


@dataclass(slots=True)
class MemoryTinker:
    """Fulfils `TinkerService`."""

    vocabulary: int = 384
    max_tokens: int = 4096
    fault: Fault = lambda point: None
    saved: dict[str, ModelState] = field(default_factory=dict)
    """By path."""
    steps: int = 0
    """Optimizer steps made for anyone, also in vain."""
    runs: int = 0

    async def is_healthy(self) -> bool:
        """Return True: there is nothing to break."""
        return True

    async def longest_sequence(self) -> int:
        """Return `max_tokens`."""
        return self.max_tokens

    async def begin_run(self) -> "MemoryRun":
        """Return a run whose tokens are all alike."""
        zeros = [0.0] * self.vocabulary
        return self._new_run("begin_run", ModelState(zeros, zeros[:], zeros[:]))

    async def resume_run(self, state: str) -> "MemoryRun":
        """Return a run with what was saved."""
        return self._new_run("resume_run", self.find(state).copy())

    async def saved_paths(self, run_id: str) -> tuple[str, ...]:
        """Return what a run has saved."""
        self.fault("saved_paths before")
        return tuple(path for path in self.saved if path.startswith(f"tinker://{run_id}/"))

    async def open_sampler(self, state: str) -> "MemorySampler":
        """Sample from what was saved."""
        self.fault("open_sampler before")
        return MemorySampler(self.find(state))

    async def delete(self, path: str) -> None:
        """Forget what was saved."""
        self.fault("delete before")
        self.saved.pop(path, None)
        self.fault("delete after")

    async def close(self) -> None:
        """Do nothing."""

    def find(self, path: str) -> ModelState:
        """Return what was saved under a path; RejectedError if nothing was, or it was deleted."""
        if path not in self.saved:
            raise RejectedError(f"nothing is saved at {path}")
        return self.saved[path]

    def _new_run(self, call: str, state: ModelState) -> "MemoryRun":
        self.fault(f"{call} before")
        self.runs += 1
        run = MemoryRun(self, f"run-{self.runs}", state)
        self.fault(f"{call} after")
        return run


class MemoryRun:
    """Fulfils `TrainingRun`."""

    def __init__(self, service: MemoryTinker, run_id: str, state: ModelState) -> None:
        self.run_id = run_id
        self._service, self._state = service, state
        self._gradient: list[float] | None = None
        self._closed = False

    async def forward_backward(self, data: Sequence[LossSequence], loss: ServiceLoss) -> PassOutput:
        """Add the exact gradient of the loss."""
        self._begin("forward_backward")
        normaliser, logits = self._state.log_normaliser(), self._state.logits
        probabilities = [math.exp(logit - normaliser) for logit in logits]
        gradient, total = self._gradient or [0.0] * len(logits), 0.0
        for sequence in data:
            for target, behaviour, advantage in zip(
                sequence.target_ids, sequence.logprobs, sequence.advantages, strict=True
            ):
                slope = loss_slope(loss, logits[target] - normaliser, behaviour, advantage)
                gradient[target] += slope
                total += slope
        gradient = [slope - total * share for slope, share in zip(gradient, probabilities, strict=True)]
        self._gradient = gradient
        logprobs = tuple(tuple(logits[target] - normaliser for target in sequence.target_ids) for sequence in data)
        self._service.fault("forward_backward after")
        return PassOutput(logprobs, {})

    async def optim_step(self, optimizer: AdamSettings) -> Mapping[str, float]:
        """Make one step of AdamW."""
        self._begin("optim_step")
        state, gradient = self._state, self._gradient or [0.0] * len(self._state.logits)
        norm = math.sqrt(math.fsum(slope * slope for slope in gradient))
        scale = min(1.0, optimizer.max_grad_norm / norm) if norm else 1.0
        state.steps += 1
        self._service.steps += 1
        for token_id, slope in enumerate(gradient):
            _move(state, token_id, slope * scale, optimizer)
        self._gradient = None
        self._service.fault("optim_step after")
        return {"grad_norm": norm}

    async def save_state(self, name: str) -> str:
        """Keep a copy to go on from."""
        self._begin("save_state")
        path = f"tinker://{self.run_id}/weights/{name}"
        if path in self._service.saved:
            raise RejectedError(f"{path} exists")
        self._service.saved[path] = self._state.copy()
        self._service.fault("save_state after")
        return path

    async def close(self) -> None:
        """Refuse further calls."""
        self._closed = True

    def _begin(self, call: str) -> None:
        self._service.fault(f"{call} before")
        if self._closed:
            raise UnavailableError(f"run {self.run_id} is not in memory any more")


class MemorySampler:
    """Fulfils `VersionSampler`."""

    def __init__(self, state: ModelState) -> None:
        self._state = state

    async def sample(self, prompt: Sequence[int], request: SamplingRequest) -> SampledTokens:
        """Draw tokens until one stops."""
        draw, greedy = random.Random(request.seed), request.temperature == 0
        temperature = 1.0 if greedy else request.temperature
        normaliser, tempered = self._state.log_normaliser(), self._state.log_normaliser(temperature)
        logits = self._state.logits
        weights = [math.exp(logit / temperature - tempered) for logit in logits]
        weights = _keep_nucleus(weights, request.top_p)
        token_ids: list[int] = []
        while len(token_ids) < request.max_tokens and not (token_ids and token_ids[-1] in request.stop_ids):
            likeliest = max(range(len(logits)), key=logits.__getitem__)
            token_ids.append(likeliest if greedy else draw.choices(range(len(logits)), weights)[0])
        logprobs = tuple(logits[token_id] - normaliser for token_id in token_ids)
        return SampledTokens(tuple(token_ids), logprobs, token_ids[-1] in request.stop_ids)

    async def score(self, prompt: Sequence[int]) -> tuple[float, ...]:
        """Return the log-probs of a prompt."""
        normaliser = self._state.log_normaliser()
        return tuple(self._state.logits[token_id] - normaliser for token_id in prompt[1:])

    async def close(self) -> None:
        """Do nothing."""


def loss_slope(loss: ServiceLoss, current: float, behaviour: float, advantage: float) -> float:
    """Return the slope of the loss by the log-prob of a token."""
    if advantage == 0.0:
        return 0.0
    if loss.name == "dro":
        return loss.bounds["beta"] * (current - behaviour) - advantage
    ratio, bounded = clip_ratio(loss, current, behaviour)
    if loss.name == "cispo":
        return -bounded * advantage
    is_flat = bounded * advantage < ratio * advantage
    return 0.0 if is_flat else -ratio * advantage


def _move(state: ModelState, token_id: int, slope: float, optimizer: AdamSettings) -> None:
    """Move one weight by AdamW."""
    first, second = state.first_moments, state.second_moments
    first[token_id] = optimizer.beta1 * first[token_id] + (1 - optimizer.beta1) * slope
    second[token_id] = optimizer.beta2 * second[token_id] + (1 - optimizer.beta2) * slope * slope
    mean = first[token_id] / (1 - optimizer.beta1**state.steps)
    deviation = math.sqrt(second[token_id] / (1 - optimizer.beta2**state.steps)) + ADAM_EPSILON
    decay = optimizer.weight_decay * state.logits[token_id]
    state.logits[token_id] -= optimizer.learning_rate * (mean / deviation + decay)


def _keep_nucleus(weights: list[float], top_p: float) -> list[float]:
    """Zero all but the most probable tokens whose mass reaches top_p."""
    total, nucleus = 0.0, [0.0] * len(weights)
    for token_id in sorted(range(len(weights)), key=weights.__getitem__, reverse=True):
        if total >= top_p:
            break
        nucleus[token_id] = weights[token_id]
        total += weights[token_id]
    return nucleus
