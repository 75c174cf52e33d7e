"""Hinted turns → the log-prob of each token that they sampled, under weights that are not trained meanwhile."""

from collections.abc import Sequence

import torch
from torch import nn

from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.trainer.art_server.learner.rows import grow_trees
from rollbus.trainer.art_server.learner.update import micro_batches, score
from rollbus.trainer.backends.distillation import HintedTurn
from rollbus.trainer.backends.protocol import TrainTrajectory, TurnTokens
from rollbus.trainer.backends.sequences import TokenSequence


def score_turns(
    model: nn.Module, hinted_turns: Sequence[HintedTurn], *, device: torch.device | None = None
) -> list[list[float]]:
    """Return the log-probs of each turn's tokens, in the order of the turns; what prompts share is computed once."""
    if not hinted_turns:
        return []
    logprobs_by_row: dict[int, list[float]] = {}
    with torch.no_grad():
        for batch in micro_batches(grow_trees(list(map(_make_sequence, hinted_turns))), device=device):
            scores = score(model, batch, device=device)
            for row, value in zip(batch.sequence_N.tolist(), scores.logprobs_N.tolist(), strict=True):
                logprobs_by_row.setdefault(row, []).append(value)
    return [logprobs_by_row[row] for row in range(len(hinted_turns))]


def _make_sequence(hinted: HintedTurn) -> TokenSequence:
    """Return a turn behind its hint; it is scored, so nothing weighs."""
    turn = TurnTokens(
        encode_token_ids(hinted.prompt),
        encode_token_ids(hinted.completion),
        encode_logprobs([0.0] * len(hinted.completion)),
        policy_version=0,
        temperature=hinted.temperature,
    )
    return TokenSequence(TrainTrajectory("", "", 0.0, 0.0, (turn,)), (turn,))
