"""The protocol of a logger, and the numbers that it logs.

A record may come again after a restart; a logger must take it without harm.
"""

import math
from collections.abc import Mapping
from typing import Protocol

from rollbus.schemas.ids import escape
from rollbus.schemas.records.steps import Evaluation, StepCompleted


class RunLogger(Protocol):
    """One tracker. Its constructor raises ConfigurationError if it could never work."""

    def log_step(self, record: StepCompleted) -> None:
        """Log a completed step."""

    def log_evaluation(self, record: Evaluation) -> None:
        """Log a measurement of a version."""

    def close(self) -> None:
        """Send what is not sent yet, and end."""


def step_points(record: StepCompleted) -> dict[str, float]:
    """Return a step's numbers by name."""
    numbers = {
        "policy_version": float(record.policy_version),
        "trained": float(len(record.trained)),
        "dropped": float(len(record.dropped)),
        "duration_s": (record.completed_at_ms - record.started_at_ms) / 1000,
    }
    return _finite({f"train/{name}": value for name, value in {**record.metrics, **numbers}.items()})


def evaluation_points(record: Evaluation) -> dict[str, float]:
    """Return a measurement's numbers by name; a slash in its own name is `%2F`, so that no other's have the same."""
    prefix = f"evaluation/{escape(record.name, '/')}"
    points = {f"{prefix}/{name}": value for name, value in record.metrics.items()}
    return _finite(points | {f"{prefix}/episodes": float(record.episodes)})


def _finite(points: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in points.items() if math.isfinite(value)}
