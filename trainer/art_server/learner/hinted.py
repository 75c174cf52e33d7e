"""Hinted turns → the log-prob of each token that they sampled, under weights that are not trained meanwhile."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rollbus.trainer.art_server.learner.rows import PADDING_GROUP, unpack
from rollbus.trainer.art_server.learner.update import micro_batches, score
from rollbus.trainer.backends.distillation import HintedTurn


def score_turns(
    model: nn.Module, hinted_turns: Sequence[HintedTurn], *, device: torch.device | None = None
) -> list[list[float]]:
    """Return the log-probs of each turn's tokens, in the order of the turns; what prompts share is computed once."""
    if not hinted_turns:
        return []
    logprobs_by_row: dict[int, list[float]] = {}
    with torch.no_grad():
        for batch in micro_batches(unpack(_pack(hinted_turns)), device=device):
            scores = score(model, batch, device=device)
            for row, value in zip(batch.sequence_N.tolist(), scores.logprobs_N.tolist(), strict=True):
                logprobs_by_row.setdefault(row, []).append(value)
    return [logprobs_by_row[row] for row in range(len(hinted_turns))]


def _pack(hinted_turns: Sequence[HintedTurn]) -> dict[str, Tensor]:
    """Return the columns of packed rows, one turn a row, padded on the right; they are scored, so nothing weighs."""
    longest = max(len(hinted.prompt) + len(hinted.completion) for hinted in hinted_turns)
    shape = len(hinted_turns), longest
    tokens_B_T = torch.zeros(shape, dtype=torch.long)
    groups_B_T = torch.full(shape, PADDING_GROUP)
    sampled_B_T = torch.zeros(shape, dtype=torch.bool)
    temperatures_B_T = torch.ones(shape)
    for row, hinted in enumerate(hinted_turns):
        start, end = len(hinted.prompt), len(hinted.prompt) + len(hinted.completion)
        tokens_B_T[row, :end] = torch.tensor([*hinted.prompt, *hinted.completion])
        groups_B_T[row, :end] = row
        sampled_B_T[row, start:end] = True
        temperatures_B_T[row] = hinted.temperature
    nothing_B_T = torch.zeros(shape)
    return {
        "tokens": tokens_B_T,
        "group_ids": groups_B_T,
        "parent_ids": groups_B_T,
        "assistant_mask": sampled_B_T,
        "logprobs": nothing_B_T,
        "advantages": nothing_B_T,
        "weights": nothing_B_T,
        "temperatures": temperatures_B_T,
    }
