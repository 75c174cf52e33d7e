"""The log-probs that a pass gave back → the metrics of a step, and whether each source agrees with the model.

Pure. The names are those of the project's own learner (`trainer/grpo/step_loss`), so alarms and tables hold here too.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

from rollbus.schemas.errors import RejectedError
from rollbus.trainer.backends.admission import UNKNOWN_CAUSE, compare_logprobs, describe_disagreement, is_cut, name_cut
from rollbus.trainer.backends.tinker.sequences import TrainSequence
from rollbus.trainer.backends.tinker.service import LossSequence, PassOutput, ServiceLoss

LOG_RATIO_BOUND = 20.0
"""exp(20) is finite; as the learner's."""


def step_metrics(sequences: Sequence[TrainSequence], output: PassOutput, loss: ServiceLoss) -> dict[str, float]:
    """Return what a step reports of its sampled tokens and of what was sent."""
    pairs = list(_sampled_pairs(sequences, output))
    moves = [current - behaviour for behaviour, current in pairs]
    clipped = [clip_ratio(loss, current, behaviour) for behaviour, current in pairs]
    ratios = [ratio for ratio, _ in clipped]
    tokens = len(moves)
    squared = math.fsum(ratio * ratio for ratio in ratios)
    differences = list(map(abs, moves))
    return {
        "loss": loss_value([sequence.sequence for sequence in sequences], output, loss),
        "tokens_trained": float(tokens),
        "tokens_sent": float(sum(len(sequence.sequence.token_ids) for sequence in sequences)),
        "ratio_mean": math.fsum(ratios) / tokens,
        "ratio_max": max(ratios),
        "clip_fraction": sum(ratio != bounded for ratio, bounded in clipped) / tokens,
        "mismatch_kl": math.fsum(math.expm1(move) - move for move in _clamp_log_ratios(moves)) / tokens,
        "logprob_difference_mean": math.fsum(differences) / tokens,
        "logprob_difference_max": max(differences),
        "effective_sample_size": math.fsum(ratios) ** 2 / (tokens * squared) if squared else 0.0,
    }


def require_agreement(
    sequences: Iterable[TrainSequence], output: PassOutput, *, base_version: int, most: float
) -> dict[str, float]:
    """Return the greatest difference of a source's turns of the base version, as a metric.

    RejectedError names a source beyond `most`. Turns of older versions differ by what was trained since.
    """
    differences_by_source: dict[str, list[float]] = {}
    means: list[float] = []
    for sequence, current in zip(sequences, output.logprobs, strict=True):
        for span in sequence.spans:
            if span.turn.policy_version == base_version:
                pairs = zip(
                    sequence.sequence.logprobs[span.start : span.end], current[span.start : span.end], strict=True
                )
                differences_by_source.setdefault(span.turn.source, []).extend(
                    logprob - other for logprob, other in pairs
                )
    for source, differences in sorted(differences_by_source.items()):
        agreement = compare_logprobs(source, base_version, differences)
        if agreement.is_beyond(most):
            cause = name_cut(1.0) if is_cut(differences) else UNKNOWN_CAUSE
            raise RejectedError(describe_disagreement(agreement, cause, most=most))
        means.append(agreement.difference)
    return {"source_difference_max": max(means)} if means else {}


def require_finite(sequences: Sequence[TrainSequence], output: PassOutput) -> None:
    """Raise RejectedError if the service computed a log-prob that is not finite, or not as many as were sent."""
    sent, returned = [len(sequence.sequence.target_ids) for sequence in sequences], list(map(len, output.logprobs))
    if sent != returned:
        raise RejectedError(f"the service gave log-probs of {sum(returned)} targets, of {sum(sent)} that it was sent")
    if not all(math.isfinite(current) for _, current in _sampled_pairs(sequences, output)):
        raise RejectedError("the service computed a log-prob that is not finite; the weights are unchanged")


def loss_value(sequences: Iterable[LossSequence], output: PassOutput, loss: ServiceLoss) -> float:
    """Return the value of the loss that the service minimised, as its formulas say."""
    total = 0.0
    for sequence, logprobs in zip(sequences, output.logprobs, strict=True):
        for behaviour, advantage, current in zip(sequence.logprobs, sequence.advantages, logprobs, strict=True):
            if advantage == 0.0:
                continue
            ratio, bounded = clip_ratio(loss, current, behaviour)
            if loss.name == "cispo":
                total -= bounded * advantage * current
            elif loss.name == "dro":
                total += 0.5 * loss.bounds["beta"] * (current - behaviour) ** 2 - advantage * current
            else:
                total -= min(ratio * advantage, bounded * advantage)
    return total


def clip_ratio(loss: ServiceLoss, current: float, behaviour: float) -> tuple[float, float]:
    """Return the importance ratio of a token, and the same within the loss's bounds."""
    ratio = math.exp(max(-LOG_RATIO_BOUND, min(LOG_RATIO_BOUND, current - behaviour)))
    low, high = loss.bounds.get("clip_low_threshold", 0.0), loss.bounds.get("clip_high_threshold", math.inf)
    return ratio, min(max(ratio, low), high)


def _clamp_log_ratios(moves: Iterable[float]) -> Iterator[float]:
    return (max(-LOG_RATIO_BOUND, min(LOG_RATIO_BOUND, move)) for move in moves)


def _sampled_pairs(sequences: Sequence[TrainSequence], output: PassOutput) -> Iterator[tuple[float, float]]:
    """Yield recorded and own log-prob of each sampled token."""
    for sequence, current in zip(sequences, output.logprobs, strict=True):
        for span in sequence.spans:
            behaviour = sequence.sequence.logprobs[span.start : span.end]
            yield from zip(behaviour, current[span.start : span.end], strict=True)
