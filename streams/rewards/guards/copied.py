"""How much of an answer is the prompt again: the share of its runs of `n` (8) tokens that stand before it already.

What stands before a turn is its prompt with all earlier turns, of which the last `MAX_TOKENS` are looked at.
"""

from rollbus.schemas.records.tokens import decode_token_ids
from rollbus.schemas.records.trajectories import Trajectory
from rollbus.streams.rewards.contract import RewardContext
from rollbus.streams.rewards.guards.repetition import MAX_TOKENS, ngrams

N = 8
"""Shorter runs are common words of the subject."""


def copied(trajectory: Trajectory, context: RewardContext) -> float | None:
    """Return the share over all turns; None without sampled tokens, 0 where no turn has `n` tokens."""
    n, runs, taken = int(context.options.get("n") or N), 0, 0
    if not any(history.spans for history in trajectory.histories):
        return None
    for history in trajectory.histories:
        tokens = decode_token_ids(history.token_ids)
        for span in history.spans:
            span_runs = ngrams(tokens[span.start : min(span.end, span.start + MAX_TOKENS)], n)
            if span_runs:
                before = set(ngrams(tokens[max(0, span.start - MAX_TOKENS) : span.start], n))
                runs, taken = runs + len(span_runs), taken + sum(run in before for run in span_runs)
    return taken / runs if runs else 0.0
