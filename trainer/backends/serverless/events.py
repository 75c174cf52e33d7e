"""The events of a job → how it ended, and the metrics of the step. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from rollbus.trainer.backends.outcomes import name_service_metrics
from rollbus.trainer.backends.serverless.service import JobEvent

LOSS_NAMES = ("loss/train", "loss", "policy_loss")
"""What the service calls the loss."""
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
            for name, value in name_service_metrics(event.data, loss_names=LOSS_NAMES).items():
                samples.setdefault(name, []).append(value)
        elif event.kind in ("training_ended", "training_failed"):
            metrics = _average(samples, steps)
            if event.kind == "training_ended":
                return JobReport("ended", metrics)
            return JobReport("failed", metrics, str(event.data.get("error_message") or NO_MESSAGE))
    return JobReport("running", _average(samples, steps))


def _average(samples: Mapping[str, list[float]], steps: int) -> dict[str, float]:
    means = {name: sum(values) / len(values) for name, values in samples.items()}  # fsum refuses inf with -inf
    return means | {"gradient_steps": float(steps)}
