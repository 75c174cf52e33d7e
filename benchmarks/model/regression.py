"""A policy that is a regression on the words of a ticket: what the rewards alone would teach, in seconds.

It answers and learns as SmolLM2 does in `learning`: the same tickets, rewards, advantages, batches and loss. It knows
nothing beforehand, so its share says what a setting makes of the signal, not what a language model reaches.
"""

import math
import random
import re
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from rollbus.demo.routing.tickets import TEAMS
from rollbus.trainer.backends.protocol import TrainConfig
from rollbus.trainer.grpo.step_loss import TokenBatch, policy_loss

FEATURES = 4096
"""Places that words and pairs of words are hashed to."""
RATE_FACTOR = 50.0
"""Of the trial's learning rate: its weights are few, and begin at 0."""


class RegressionPolicy:
    """Fulfils what `learning` asks of a policy."""

    def __init__(self) -> None:
        self.version = 0
        self._weights_F_K = torch.zeros(FEATURES, len(TEAMS), requires_grad=True)
        self._optimizer = torch.optim.AdamW([self._weights_F_K], weight_decay=0.0, betas=(0.9, 0.99))

    def prompt(self, text: str) -> list[int]:
        """Return the places of a ticket's words and pairs."""
        words = re.findall(r"[a-z]+", text.lower())
        pairs = [" ".join(pair) for pair in pairwise(words)]
        return sorted({_place(feature) for feature in ("", *words, *pairs)})

    def answer(self, prompts: Sequence[Sequence[int]], temperature: float, chance: random.Random) -> list[Any]:
        """Return a team for each prompt."""
        with torch.no_grad():
            logprobs = self._logprobs(prompts).tolist()
        answers = []
        for row in logprobs:
            team = chance.choices(range(len(row)), map(math.exp, row))[0] if temperature else row.index(max(row))
            answers.append(SimpleNamespace(token_ids=(team,), logprobs=(row[team],), text=TEAMS[team]))
        return answers

    def train(self, batch: Sequence[Any], trial: Any) -> None:
        """Update from a batch."""
        rows = [
            (question.prompt, answer.token_ids[0], answer.logprobs[0], advantage)
            for question in batch
            for answer, advantage in zip(question.answers_G, question.advantages_G, strict=True)
        ]
        prompts, teams, behaviour, advantages = zip(*rows, strict=True)
        config = TrainConfig(learning_rate=trial.rate, kl_coefficient=trial.kl, kl_estimator="k3")
        for _ in range(trial.updates):
            current_N = self._logprobs(prompts)[torch.arange(len(rows)), torch.tensor(teams)]
            tokens = TokenBatch(
                current_N=current_N,
                behaviour_N=torch.tensor(behaviour),
                advantages_N=torch.tensor(advantages),
                weights_N=torch.ones(len(rows)),
                sequence_N=torch.arange(len(rows)),
                mask_N=torch.ones(len(rows), dtype=torch.bool),
                reference_N=torch.full((len(rows),), -math.log(len(TEAMS))) if trial.kl else None,
            )
            self._optimizer.zero_grad()
            policy_loss(tokens, config, global_tokens=len(rows)).loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.param_groups[0]["lr"] = trial.rate * RATE_FACTOR
            self._optimizer.step()
        self.version += 1

    def close(self) -> None:
        """Do nothing."""

    def _logprobs(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        logits_N_K = torch.stack(
            [self._weights_F_K[list(prompt)].sum(0) / math.sqrt(len(prompt)) for prompt in prompts]
        )
        return torch.log_softmax(logits_N_K, dim=-1)


def _place(feature: str) -> int:
    return int.from_bytes(blake2b(feature.encode(), digest_size=4).digest(), "big") % FEATURES
