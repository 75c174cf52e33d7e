"""The evaluations of versions, kept by version and name, and what the checks of the settings find in them."""

from collections.abc import Mapping
from dataclasses import dataclass

from rollbus.schemas.ids import SEPARATOR
from rollbus.schemas.records.config import CheckConfig, DeliveryConfig
from rollbus.schemas.records.steps import Evaluation
from rollbus.streams.stages.delivery.evidence.evaluation_checks import (
    REFUSED,
    Checked,
    Measured,
    check_against,
    check_limit,
)
from rollbus.streams.stages.delivery.state import DeliveryState


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One check, and what it found."""

    check: CheckConfig
    result: Checked

    @property
    def reason(self) -> str:
        """The code of a decision, such as `worse:held-out:reward`."""
        return f"{self.result.finding}:{self.check.name}"

    @property
    def holds(self) -> bool:
        """Whether the version must wait for an operator."""
        if self.result.finding == "refused":
            return self.check.if_refused == "hold"
        return self.result.finding == "set_changed" or (self.is_worse and self.check.on_worse == "hold")

    @property
    def is_worse(self) -> bool:
        return self.result.finding == "worse"


def keep_evaluation(state: DeliveryState, config: DeliveryConfig, record: Evaluation) -> None:
    """Keep an evaluation that a check asks for; a newer one of the version replaces it, in whatever order they come."""
    metrics = {check.metric for check in config.checks if check.evaluation == record.name}
    key = _key(record.policy_version, record.name)
    newest = state.evaluations.get(key)
    if not metrics or (newest is not None and record.evaluated_at_ms < newest.evaluated_at_ms):
        return
    checked_metrics = {
        name: value
        for name, value in record.metrics.items()
        if name == REFUSED or any(name in (metric, f"{metric}_low", f"{metric}_high") for metric in metrics)
    }
    state.evaluations.put(key, Measured(record.set_hash or "", checked_metrics, record.evaluated_at_ms))


def forget_before(state: DeliveryState, version: int) -> None:
    """Forget the evaluations of versions that no canary is compared with any more."""
    for key in list(state.evaluations.rows):
        if int(key.partition(SEPARATOR)[0]) < version:
            state.evaluations.delete(key)


def check_version(state: DeliveryState, config: DeliveryConfig, version: int) -> list[CheckFinding]:
    """Return what each check finds of a version."""
    return [CheckFinding(check, _check(state, check, version)) for check in config.checks]


def check_numbers(findings: list[CheckFinding]) -> Mapping[str, float]:
    """Return what the checks were decided on, in the metrics' own units."""
    return {
        f"{finding.check.name}.{name}": value
        for finding in findings
        if finding.result.is_known
        for name, value in (
            ("effect", finding.result.value),
            ("low", finding.result.low),
            ("high", finding.result.high),
        )
    }


def _check(state: DeliveryState, check: CheckConfig, version: int) -> Checked:
    measured = state.evaluations.get(_key(version, check.evaluation))
    if check.limit is not None:
        return check_limit(measured, check.metric, goal=check.goal, limit=check.limit)
    serving = None if state.head.serving is None else state.evaluations.get(_key(state.head.serving, check.evaluation))
    return check_against(measured, serving, check.metric, goal=check.goal, tolerance=check.tolerance)


def _key(version: int, name: str) -> str:
    return f"{version}{SEPARATOR}{name}"
