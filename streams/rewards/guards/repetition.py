"""How much of an answer was said before: the share of its runs of `n` (4) tokens that the same turn had already.

0 says that nothing comes twice; a model that repeats one sentence without end comes near 1. Of a longer turn the first
`MAX_TOKENS` are looked at.
"""

from collections.abc import Sequence
from itertools import pairwise

from rollbus.schemas.records.tokens import decode_token_ids
from rollbus.schemas.records.trajectories import Trajectory
from rollbus.streams.rewards.contract import RewardContext

MAX_TOKENS = 8192
"""Of a turn: some ten milliseconds of work."""
N = 4


def repetition(trajectory: Trajectory, context: RewardContext) -> float | None:
    """Return the share over all turns; None without sampled tokens, 0 where no turn has `n` tokens."""
    n, runs, repeated = int(context.options.get("n") or N), 0, 0
    if not any(history.spans for history in trajectory.histories):
        return None
    for history in trajectory.histories:
        tokens = decode_token_ids(history.token_ids)
        for span in history.spans:
            span_runs = ngrams(tokens[span.start : min(span.end, span.start + MAX_TOKENS)], n)
            runs, repeated = runs + len(span_runs), repeated + len(span_runs) - len(set(span_runs))
    return repeated / runs if runs else 0.0


def ngrams(tokens: Sequence[int], n: int) -> list[tuple[int, ...]]:
    """Return each run of n tokens, in order."""
    if n == 2:
        return list(pairwise(tokens))
    return list(zip(*(tokens[start:] for start in range(n)), strict=False))
