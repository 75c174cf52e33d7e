"""What a gamed reward does to the text: a trajectory comes in, a measure goes out. Pure.

Give them weight 0 in `scoring.rewards`, and a limit in the run's `delivery.metrics`.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids
from rollbus.schemas.records.trajectories import Trajectory
from rollbus.streams.rewards.contract import RewardContext

Ngram = tuple[int, ...]
"""Tokens that follow each other."""
MAX_TOKENS = 8192
"""Of a turn, the first, and of its prompt the last ones are looked at: some ten milliseconds of work."""
REPEATED_RUN, COPIED_RUN = 4, 8
"""Tokens of a run, where `n` names no other number; shorter runs of a prompt are common words of the subject."""
REFUSED_WITHIN = 200
"""Characters: a refusal comes first; later the same words are mostly about something else."""
REFUSALS = (
    "i can't help|i cannot help|i can't assist|i cannot assist|i can't provide|i cannot provide|i can't do that|"
    "i cannot do that|i'm unable to|i am unable to|i'm not able to|i am not able to|i won't be able to|"
    "i'm sorry, but i|i am sorry, but i|i must decline|as an ai"
)


def repetition(trajectory: Trajectory, context: RewardContext) -> float | None:
    """Return how much of an answer was said before: the share of its runs of `n` tokens that its turn had already.

    0 says that nothing comes twice; a model that repeats one sentence without end comes near 1. None without sampled
    tokens, 0 where no turn has `n` tokens.
    """
    n = _length_of_run(context, REPEATED_RUN)
    return _share_of_runs(trajectory, n, lambda runs, tokens, start: len(runs) - len(set(runs)))


def copied(trajectory: Trajectory, context: RewardContext) -> float | None:
    """Return how much of an answer is the prompt again: the share of its runs of `n` tokens that stand before its turn.

    Before a turn stand its prompt and all earlier turns. None without sampled tokens, 0 where no turn has `n` tokens.
    """
    n = _length_of_run(context, COPIED_RUN)

    def count_copied(runs: Sequence[Ngram], tokens: Sequence[int], start: int) -> int:
        before = set(_ngrams(tokens[max(0, start - MAX_TOKENS) : start], n))
        return sum(run in before for run in runs)

    return _share_of_runs(trajectory, n, count_copied)


def refused(trajectory: Trajectory, context: RewardContext) -> float | None:
    """Return the share of the turns that begin by refusing, with one of the phrases; None without turns.

    The option `phrases` replaces the list, separated by `|`, for other languages and other ways of saying no. Case and
    the form of the apostrophe do not matter.
    """
    phrases = [part for part in _plain(str(context.options.get("phrases") or REFUSALS)).split("|") if part]
    begun = [_plain((turn.completion.content or "")[:REFUSED_WITHIN]) for turn in trajectory.turns]
    return sum(any(phrase in text for phrase in phrases) for text in begun) / len(begun) if begun else None


def surprisal(trajectory: Trajectory, context: RewardContext) -> float | None:
    """Return how open the policy still is: the mean of −log p of the sampled tokens, in nats; None without log-probs.

    At temperature 1 its average is the entropy per token. It falls towards 0 when a policy collapses into one answer.
    """
    logprobs = [logprob for history in trajectory.histories for logprob in decode_logprobs(history.logprobs)]
    return -sum(logprobs) / len(logprobs) if logprobs else None


def _length_of_run(context: RewardContext, default: int) -> int:
    n = int(context.options.get("n") or default)
    if n < 1:
        raise ValueError(f"n is {n}; a run has at least 1 token")
    return n


def _share_of_runs(
    trajectory: Trajectory, n: int, count: Callable[[Sequence[Ngram], Sequence[int], int], int]
) -> float | None:
    """Return the share of the turns' runs of n tokens that count; None without sampled tokens, 0 without a run.

    `count` is given the runs of a turn, the tokens of its history, and where the turn begins in them.
    """
    if not any(history.spans for history in trajectory.histories):
        return None
    all_runs = counted = 0
    for history in trajectory.histories:
        tokens = decode_token_ids(history.token_ids)
        for span in history.spans:
            runs = _ngrams(tokens[span.start : min(span.end, span.start + MAX_TOKENS)], n)
            if runs:
                all_runs, counted = all_runs + len(runs), counted + count(runs, tokens, span.start)
    return counted / all_runs if all_runs else 0.0


def _ngrams(tokens: Sequence[int], n: int) -> list[Ngram]:
    """Return each run of n tokens, in order."""
    if n == 2:
        return list(pairwise(tokens))
    return list(zip(*(tokens[start:] for start in range(n)), strict=False))


def _plain(text: str) -> str:
    return text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'").casefold()
