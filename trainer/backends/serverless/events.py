"""The events of a job → how it ended, and the metrics of the step. Pure."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rollbus.trainer.backends.serverless.service import JobEvent

OUR_NAMES = {"loss/train": "loss", "loss": "loss", "policy_loss": "loss", "grad_norm": "grad_norm"}
"""Names of ours by the service's, whole or what follows its last `/`; all others become `service_…`."""
NO_MESSAGE = "the service gave no reason"


@dataclass(frozen=True, slots=True)
class JobReport:
    """What is known of a job."""

    state: Literal["running", "ended", "failed", "forgotten"]
    metrics: Mapping[str, float]
    message: str = ""
    """Why it failed."""

    @property
    def gradient_steps(self) -> int:
        """Optimizer steps that it reported."""
        return int(self.metrics.get("gradient_steps", 0))


FORGOTTEN = JobReport("forgotten", {})


def report_job(events: Iterable[JobEvent]) -> JobReport:
    """Return what all events of a job so far say; metrics are means over its optimizer steps."""
    samples: dict[str, list[float]] = {}
    steps = 0
    for event in events:
        if event.kind == "gradient_step":
            steps += 1
            for name, value in name_metrics(event.data).items():
                samples.setdefault(name, []).append(value)
        elif event.kind in ("training_ended", "training_failed"):
            metrics = _average(samples, steps)
            if event.kind == "training_ended":
                return JobReport("ended", metrics)
            return JobReport("failed", metrics, str(event.data.get("error_message") or NO_MESSAGE))
    return JobReport("running", _average(samples, steps))


def name_metrics(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of the service: loss and norm of the gradient by our names, the others `service_…`."""
    named: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            continue
        last = name.rpartition("/")[2]
        named[OUR_NAMES.get(name) or OUR_NAMES.get(last) or f"service_{last}"] = float(value)
    return named


def _average(samples: Mapping[str, list[float]], steps: int) -> dict[str, float]:
    means = {name: math.fsum(values) / len(values) for name, values in samples.items()}
    return means | {"gradient_steps": float(steps)}
