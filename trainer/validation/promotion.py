"""Evaluations and versions → the candidate that may be served: the gate between training and serving.

Pure. A candidate is promoted once it has been measured and is at least as good as the serving version (or, if so asked,
certainly better), by the same evaluation on the same set. Without a measurement of both, it waits.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollbus.trainer.train_config import FrozenSettings

if TYPE_CHECKING:  # settings take the rule from here, without the records
    from rollbus.schemas.records.steps import Evaluation
    from rollbus.trainer.ledger.lineage import Lineage


class PromotionRule(FrozenSettings):
    """Which candidates are served without an operator."""

    evaluation: str
    """Name of the evaluation."""
    metric: str
    """Of its metrics; greater is better."""
    margin: float = 0.0
    """How much better than the serving version it must be; negative allows for noise."""
    certain: bool = False
    """True compares the whole 95 % interval of the difference with the margin, not the difference alone."""


@dataclass(frozen=True, slots=True)
class Promotion:
    version: int
    reason: str


def find_promotion(evaluations: Iterable["Evaluation"], lineage: "Lineage", rule: PromotionRule) -> Promotion | None:
    """Return the newest candidate above the serving version that passes; measured again, the last evaluation counts."""
    from rollbus.trainer.validation.evaluation import difference

    measured = {
        evaluation.policy_version: evaluation
        for evaluation in evaluations
        if evaluation.name == rule.evaluation and rule.metric in evaluation.metrics
    }
    serving, head = lineage.serving, lineage.head
    if serving is None or head is None or serving not in measured:
        return None
    lags, baseline = lineage.lags(head), measured[serving]
    for version in (version for version, lag in lags.items() if lag < lags.get(serving, 0)):
        candidate = measured.get(version)
        if lineage.states[version] != "candidate" or candidate is None or candidate.set_hash != baseline.set_hash:
            continue
        low, gain, _ = difference(candidate, baseline, rule.metric)
        if (low > rule.margin) if rule.certain else (gain >= rule.margin):
            values = (
                f"{candidate.metrics[rule.metric]:.4g} against {baseline.metrics[rule.metric]:.4g} of version {serving}"
            )
            return Promotion(version, f"evaluation {rule.evaluation!r}: {rule.metric} {values}")
    return None
