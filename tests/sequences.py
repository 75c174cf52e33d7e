"""Builders of token sequences, as the learner takes them."""

import random
from collections.abc import Sequence

from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.trainer.backends.protocol import TrainTrajectory, TurnTokens
from rollbus.trainer.backends.sequences import TokenSequence

PROMPT, LEFT, RIGHT, DEEPER = [5, 60, 61, 62], [63, 70, 71, 72], [63, 80, 81], [64, 90, 91]
ANSWERS = (
    ([*PROMPT, LEFT[0]], LEFT[1:], 1.0),
    ([*PROMPT, RIGHT[0]], RIGHT[1:], -1.0),
    ([*PROMPT, *RIGHT, DEEPER[0]], DEEPER[1:], 1.0),
)
"""Prompts, what was sampled, and its advantage; seven sampled tokens, no two of them the same."""


def make_sequence(
    prompt: Sequence[int],
    sampled: Sequence[int],
    *,
    advantage: float = 1.0,
    logprobs: Sequence[float] | None = None,
    temperature: float = 1.0,
) -> TokenSequence:
    """One turn; without log-probs they are plausible for a model of 384 tokens."""
    turn = TurnTokens(
        encode_token_ids(prompt),
        encode_token_ids(sampled),
        encode_logprobs([-5.5] * len(sampled) if logprobs is None else logprobs),
        policy_version=0,
        temperature=temperature,
    )
    return TokenSequence(TrainTrajectory("t", "g", advantage, 0.0, (turn,)), (turn,))


def three_answers(*, seed: int = 0, shifts: Sequence[float] = (0.0,) * 7, scale: float = 1.0) -> list[TokenSequence]:
    """Log-probs of −6 to −5, each with its shift; advantages of 1, −1 and 1, times the scale."""
    chance, shift = random.Random(seed), iter(shifts)
    return [
        make_sequence(
            prompt,
            sampled,
            advantage=scale * advantage,
            logprobs=[-5 - chance.random() + next(shift) for _ in sampled],
        )
        for prompt, sampled, advantage in ANSWERS
    ]
