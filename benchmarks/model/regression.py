"""A policy that is a regression on the words of a ticket: what the rewards alone would teach, in seconds.

It answers and learns as SmolLM2 does in `learning`: the same tickets, rewards, advantages, batches and loss. It knows
nothing beforehand, so its share says what a setting makes of the signal, not what a language model reaches.
"""

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from rollbus.demo.routing.tickets import TEAMS, Ticket
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids, encode_logprobs, encode_token_ids
from rollbus.trainer.backends.protocol import TurnTokens
from rollbus.trainer.grpo.step_loss import TokenBatch, policy_loss
from rollbus.trainer.train_config import TrainConfig

FEATURES = 4096
"""Places that words and pairs of words are hashed to."""
RATE_FACTOR = 50.0
"""Of the trial's learning rate: its weights are few, and begin at 0."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of the agent on a ticket, and what it is worth."""

    turns: tuple[TurnTokens, ...]
    team: str | None
    """None if the agent named none."""
    advantage: float = 0.0


class RegressionPolicy:
    """Fulfils what `learning` asks of a policy."""

    def __init__(self) -> None:
        self.version = 0
        self._weights_F_K = torch.zeros(FEATURES, len(TEAMS), requires_grad=True)
        self._optimizer = torch.optim.AdamW([self._weights_F_K], weight_decay=0.0, betas=(0.9, 0.99))

    def attempt(
        self, tickets: Sequence[Ticket], look_up: object, temperature: float, chance: random.Random
    ) -> list[Attempt]:
        """Name a team for each ticket; nothing is looked up."""
        prompts = [_place_words(ticket.text) for ticket in tickets]
        with torch.no_grad():
            logprobs = self._logprobs(prompts).tolist()
        attempts = []
        for prompt, row in zip(prompts, logprobs, strict=True):
            team = chance.choices(range(len(row)), map(math.exp, row))[0] if temperature else row.index(max(row))
            turn = TurnTokens(encode_token_ids(prompt), encode_token_ids([team]), encode_logprobs([row[team]]), 0)
            attempts.append(Attempt((turn,), TEAMS[team]))
        return attempts

    def train(self, batch: Sequence[Attempt], trial: Any) -> None:
        """Update from a batch."""
        turns = [attempt.turns[0] for attempt in batch]
        prompts = [decode_token_ids(turn.prompt_token_ids).tolist() for turn in turns]
        teams = [int(decode_token_ids(turn.completion_token_ids)[0]) for turn in turns]
        behaviour = [float(decode_logprobs(turn.logprobs)[0]) for turn in turns]
        config = TrainConfig(learning_rate=trial.rate, kl_coefficient=trial.kl, kl_estimator="k3")
        for _ in range(trial.updates):
            current_N = self._logprobs(prompts)[torch.arange(len(batch)), torch.tensor(teams)]
            tokens = TokenBatch(
                current_N=current_N,
                behaviour_N=torch.tensor(behaviour),
                advantages_N=torch.tensor([attempt.advantage for attempt in batch]),
                weights_N=torch.ones(len(batch)),
                sequence_N=torch.arange(len(batch)),
                mask_N=torch.ones(len(batch), dtype=torch.bool),
                reference_N=torch.full((len(batch),), -math.log(len(TEAMS))) if trial.kl else None,
            )
            self._optimizer.zero_grad()
            policy_loss(tokens, config, global_tokens=len(batch)).loss.backward()  # type: ignore[no-untyped-call]
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


def _place_words(text: str) -> list[int]:
    """Return the places of a ticket's words and pairs."""
    words = re.findall(r"[a-z]+", text.lower())
    pairs = [" ".join(pair) for pair in pairwise(words)]
    return sorted({_place(feature) for feature in ("", *words, *pairs)})


def _place(feature: str) -> int:
    return int.from_bytes(blake2b(feature.encode(), digest_size=4).digest(), "big") % FEATURES
