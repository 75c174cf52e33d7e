"""Evaluations and versions → the candidate that may be served: the gate between training and serving.

Pure. A candidate is promoted once it has been measured and is no worse than the version that serves (or, if so asked,
certainly better), by the same evaluation on the same set; one that was not measured waits, and so does all while the
serving one was not.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from rollbus.schemas.steps import Evaluation
from rollbus.trainer.evaluation import difference
from rollbus.trainer.lineage import Lineage


@dataclass(frozen=True, slots=True)
class PromotionRule:
    evaluation: str
    """Name of the evaluation."""
    metric: str
    """Of its metrics; greater is better."""
    margin: float = 0.0
    """How much better than the serving version it must be; negative allows for noise."""
    certain: bool = False
    """True asks that the whole 95 % interval of the difference lies above the margin, not the difference alone."""


@dataclass(frozen=True, slots=True)
class Promotion:
    version: int
    reason: str


def find_promotion(evaluations: Iterable[Evaluation], lineage: Lineage, rule: PromotionRule) -> Promotion | None:
    """Return the newest candidate above the serving version that passes; measured again, the newest record counts."""
    measured = {
        each.policy_version: each
        for each in evaluations
        if each.name == rule.evaluation and rule.metric in each.metrics
    }
    serving, head = lineage.serving, lineage.head
    if serving is None or head is None or serving not in measured:
        return None
    lags, held = lineage.lags(head), measured[serving]
    for version in (version for version, lag in lags.items() if lag < lags.get(serving, 0)):
        found = measured.get(version)
        if lineage.states[version] != "candidate" or found is None or found.set_hash != held.set_hash:
            continue
        low, gain, _ = difference(found, held, rule.metric)
        if (low > rule.margin) if rule.certain else (gain >= rule.margin):
            values = f"{found.metrics[rule.metric]:.4g} against {held.metrics[rule.metric]:.4g} of version {serving}"
            return Promotion(version, f"evaluation {rule.evaluation!r}: {rule.metric} {values}")
    return None
