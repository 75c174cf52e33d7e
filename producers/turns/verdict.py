"""Say whether a turn's tokens can be trained on, and if not, why.

Ids, log-probs and the server's own count of completion tokens must agree; nothing is guessed, repaired or tokenised
again.
"""

import math
from array import array
from collections.abc import Sequence
from typing import cast

MISSING_LOGPROB = -9999.0
"""Servers write this (or NaN) where they have no value."""
ROUNDING = 1e-4
"""A log-prob this little above 0 is the rounding of a certain token."""


def clean_logprobs(values: Sequence[float | None]) -> Sequence[float] | None:
    """Return the log-probs; None where one is missing (absent, NaN, infinite, −9999 or lower) or not a log-prob."""
    try:
        # Looks at every value, many times faster than a loop would.
        cleaned: array[float] = array("d", cast(Sequence[float], values))
    except (TypeError, OverflowError):  # a whole number may be larger than any float
        return None
    if not cleaned or not math.isfinite(sum(cleaned)) or min(cleaned) <= MISSING_LOGPROB:
        return None
    greatest = max(cleaned)
    if greatest > ROUNDING:
        return None
    return [min(value, 0.0) for value in cleaned] if greatest > 0 else cleaned


def judge(
    *,
    prompt_token_ids: Sequence[int] | None,
    token_ids: Sequence[int] | None,
    logprobs: Sequence[float | None] | None,
    sampled_tokens: int | None,
    completion_tokens: int | None,
    complete: bool,
    withheld: str | None = None,
    sampling: str | None = None,
) -> str | None:
    """Return why one choice cannot be trained on; None where it can.

    `sampled_tokens` and `completion_tokens` are of the whole answer, all choices together: what was captured, and
    the server's count. `withheld` is a reason from outside: masked text, or a server that refuses to give log-probs;
    `sampling` says why nobody knows how the tokens were sampled.
    """
    return (
        withheld
        or (None if complete else "truncated_stream")
        or _missing(prompt_token_ids, token_ids, logprobs)
        or _disagreement(token_ids or (), logprobs or (), sampled_tokens, completion_tokens)
        or sampling
    )


def _missing(
    prompt_token_ids: Sequence[int] | None,
    token_ids: Sequence[int] | None,
    logprobs: Sequence[float | None] | None,
) -> str | None:
    if not logprobs:
        return "no_logprobs"
    if clean_logprobs(logprobs) is None:
        return "missing_logprobs"
    if not token_ids:
        return "no_token_ids"
    if not prompt_token_ids:
        return "no_prompt_token_ids"
    return None


def _disagreement(
    token_ids: Sequence[int],
    logprobs: Sequence[float | None],
    sampled_tokens: int | None,
    completion_tokens: int | None,
) -> str | None:
    if len(token_ids) != len(logprobs):
        return "length_mismatch"
    if completion_tokens is None:
        return "no_usage"
    return None if sampled_tokens == completion_tokens else "length_mismatch"
