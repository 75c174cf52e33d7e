"""A small task on which lag can be seen: learn by heart what to answer to each of eight questions, from rewards alone.

A question is one token, its answer four of eight letters, fixed by the seed; the reward is the share of letters at
their place. The policy is a Qwen2-shaped model of 50,000 weights; sampling and updates are the model service's own
code (`trunk`, `head`, `Learner.step`), without HTTP, Kafka and ART around them.

Every step samples one batch with the weights of now and trains on the batch sampled `lag` steps ago.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import torch
from torch import Tensor

from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.streams.stages.grouping.advantages import advantages
from rollbus.trainer.art_server.learner.update import Learner
from rollbus.trainer.art_server.model.config import ModelConfig
from rollbus.trainer.art_server.model.model import head, initialize, trunk
from rollbus.trainer.backends.protocol import TrainConfig, TrainTrajectory, TurnTokens
from rollbus.trainer.backends.sequences import TokenSequence

Variant = Literal["none", "cispo", "mask", "ppo"]
VARIANTS: dict[Variant, str] = {
    "none": "no correction",
    "cispo": "cispo (the default)",
    "mask": "cispo, off_policy_mask_threshold 0.5",
    "ppo": "ppo",
}
LAGS = (0, 1, 2, 4, 8)
SEEDS = (0, 1, 2)

QUESTIONS, LETTERS, LENGTH = 8, 8, 4
GROUP_SIZE = 16
"""128 answers a step."""
STEPS = 200
LEARNING_RATES = (1e-3, 3e-3)
"""One at which a policy eight steps old still resembles the current one, and one at which it does not."""
LAST = 20
"""Versions whose mean reward is a run's result."""
MODEL = ModelConfig(
    vocabulary=QUESTIONS + LETTERS,
    layers=2,
    width=48,
    heads=4,
    kv_heads=2,
    feed_forward=96,
    max_tokens=LENGTH + 1,
    tied=False,
)
REPORTED = (
    *("ratio_mean", "ratio_max", "clip_fraction", "mismatch_kl", "effective_sample_size", "entropy", "grad_norm"),
    "stale_mask_fraction",
)


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch as it was sampled; B answers of T letters."""

    tokens_B_T: Tensor
    """Question and answer."""
    logprobs_B_T: Tensor
    """Of the answer's letters, under the policy that sampled them."""
    rewards_B: Tensor

    @property
    def reward(self) -> float:
        return float(self.rewards_B.mean())


@dataclass(frozen=True, slots=True)
class Run:
    """What one run showed."""

    variant: Variant
    lag: int
    seed: int
    learning_rate: float
    rewards: tuple[float, ...]
    """Mean reward of each version, from what it sampled itself."""
    metrics: dict[str, tuple[float, ...]]
    """By name, per step."""

    @property
    def final(self) -> float:
        return fmean(self.rewards[-LAST:])


def run(variant: Variant, lag: int, seed: int, learning_rate: float, *, steps: int = STEPS) -> Run:
    """Train from fresh weights; the same arguments give the same run on the same machine."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(1000 + seed)
    answers_Q_T = torch.randint(0, LETTERS, (QUESTIONS, LENGTH), generator=generator)
    learner = Learner(MODEL)
    initialize(learner.model, seed)
    config = TrainConfig(
        learning_rate=learning_rate,
        loss="ppo" if variant == "ppo" else "cispo",
        off_policy_mask_threshold=0.5 if variant == "mask" else None,
    )
    waiting: deque[Batch] = deque()
    rewards: list[float] = []
    metrics: dict[str, list[float]] = {name: [] for name in REPORTED}
    for step in range(steps):
        fresh = [sample(learner, answers_Q_T, generator) for _ in range(lag + 1 if step == 0 else 1)]
        waiting.extend(fresh)
        rewards.append(fresh[0].reward)
        report = learner.step(make_sequences(learner, waiting.popleft(), variant), config)
        for name in REPORTED:
            metrics[name].append(report[name])
    per_step = {name: tuple(values) for name, values in metrics.items()}
    return Run(variant, lag, seed, learning_rate, tuple(rewards), per_step)


@torch.no_grad()
def sample(learner: Learner, answers_Q_T: Tensor, generator: torch.Generator) -> Batch:
    """Answer every question, each in a group of attempts."""
    learner.model.eval()
    tokens_B_T = torch.arange(QUESTIONS).repeat_interleave(GROUP_SIZE)[:, None]
    logprobs = []
    for _ in range(LENGTH):
        logits_B_V = head(learner.model, trunk(learner.model, tokens_B_T)[:, -1])
        logprobs_B_V = torch.log_softmax(logits_B_V, dim=-1)
        next_B_1 = torch.multinomial(logprobs_B_V.exp(), 1, generator=generator)
        logprobs.append(logprobs_B_V.gather(1, next_B_1)[:, 0])
        tokens_B_T = torch.cat([tokens_B_T, next_B_1], dim=1)
    right_B_T = tokens_B_T[:, 1:] - QUESTIONS == answers_Q_T[tokens_B_T[:, 0]]
    return Batch(tokens_B_T, torch.stack(logprobs, dim=1), right_B_T.float().mean(dim=1))


def make_sequences(learner: Learner, batch: Batch, variant: Variant) -> list[TokenSequence]:
    """Return the answers of a batch as sequences.

    `none` says that the log-probs are those of now: whatever the lag, the update takes the data for its own.
    """
    groups = batch.rewards_B.view(-1, GROUP_SIZE).tolist()
    advantages_B = [value for group in groups for value in advantages(group, "leave_one_out")]
    logprobs_B_T = current(learner, batch) if variant == "none" else batch.logprobs_B_T
    sequences = []
    for (question, *answer), advantage, logprobs in zip(
        batch.tokens_B_T.tolist(), advantages_B, logprobs_B_T.tolist(), strict=True
    ):
        turn = TurnTokens(encode_token_ids([question]), encode_token_ids(answer), encode_logprobs(logprobs), 0)
        sequences.append(TokenSequence(TrainTrajectory("t", "g", advantage, 0.0, (turn,)), (turn,)))
    return sequences


@torch.no_grad()
def current(learner: Learner, batch: Batch) -> Tensor:
    """Log-probs of the answers under the weights of now."""
    hidden_B_T_D = trunk(learner.model, batch.tokens_B_T[:, :-1])
    logprobs_B_T_V = torch.log_softmax(head(learner.model, hidden_B_T_D), dim=-1)
    return logprobs_B_T_V.gather(2, batch.tokens_B_T[:, 1:, None])[..., 0]


def select(runs: Iterable[Run], rate: float, lag: int, variant: Variant) -> list[Run]:
    """Runs of a cell; a run of lag 0 counts for every variant."""
    variant_at_lag = variant if lag else "cispo"
    return [run for run in runs if (run.learning_rate, run.lag, run.variant) == (rate, lag, variant_at_lag)]
