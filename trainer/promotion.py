"""Evaluations and versions → the candidate that may be served: the gate between training and serving.

Pure. A candidate is promoted once it has been measured and is no worse than the version that serves, by the same
evaluation; one that was not measured waits, and so does all while the serving one was not.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from rollbus.schemas.steps import Evaluation
from rollbus.trainer.lineage import Lineage


@dataclass(frozen=True, slots=True)
class PromotionRule:
    evaluation: str
    """Name of the evaluation."""
    metric: str
    """Of its metrics; greater is better."""
    margin: float = 0.0
    """How much better than the serving version it must be; negative allows for noise."""


@dataclass(frozen=True, slots=True)
class Promotion:
    version: int
    reason: str


def find_promotion(evaluations: Iterable[Evaluation], lineage: Lineage, rule: PromotionRule) -> Promotion | None:
    """Return the newest candidate above the serving version that passes; measured again, the newest record counts."""
    values = {
        each.policy_version: each.metrics[rule.metric]
        for each in evaluations
        if each.name == rule.evaluation and rule.metric in each.metrics
    }
    serving, head = lineage.serving, lineage.head
    if serving is None or head is None or serving not in values:
        return None
    lags = lineage.lags(head)
    newer = (version for version, lag in lags.items() if lag < lags.get(serving, 0))
    least = values[serving] + rule.margin
    for version in newer:
        if lineage.states[version] == "candidate" and values.get(version, float("nan")) >= least:
            compared = f"{rule.metric} {values[version]:.4g} against {values[serving]:.4g} of version {serving}"
            return Promotion(version, f"evaluation {rule.evaluation!r}: {compared}")
    return None
