"""How a batch ended, as results, metrics and errors. Pure."""

from collections.abc import Collection, Mapping
from typing import Any

from rollbus.schemas.errors import RejectedError, RollbusError, UnavailableError
from rollbus.trainer.backends.admission import Admitted
from rollbus.trainer.backends.protocol import JobStatus, TrainRequest, TrainResult

GRAD_NORM = "grad_norm"


def completed(
    request: TrainRequest, admitted: Admitted, version: int, metrics: Mapping[str, float], checkpoint: str
) -> TrainResult:
    return TrainResult(
        batch_hash=request.batch_hash,
        base_version=request.base_version,
        version=version,
        state="completed",
        trained_ids=tuple(trajectory.trajectory_id for trajectory in admitted.trajectories),
        dropped=admitted.dropped,
        metrics={**metrics, "trajectories_trained": float(len(admitted.trajectories))},
        checkpoint=checkpoint,
    )


def skipped(request: TrainRequest, admitted: Admitted) -> TrainResult:
    return TrainResult(
        batch_hash=request.batch_hash,
        base_version=request.base_version,
        version=request.base_version,
        state="skipped",
        trained_ids=(),
        dropped=admitted.dropped,
        metrics={},
        checkpoint="",
    )


def name_service_metrics(figures: Mapping[str, Any], *, loss_names: Collection[str] = ()) -> dict[str, float]:
    """Return the numbers that a service reports: its norm of the gradient, and what it calls the loss, by our names.

    All others become `service_…`; only what follows the last `/` counts. A number that is not finite stays: the alarm
    about divergence looks for it.
    """
    metrics: dict[str, float] = {}
    for name, value in figures.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        last = name.rpartition("/")[2]
        if name in loss_names or last in loss_names:
            metrics["loss"] = float(value)
        else:
            metrics[last if last == GRAD_NORM else f"service_{last}"] = float(value)
    return metrics


def job_error(status: JobStatus) -> RollbusError:
    """Return the error that a failed or canceled job ended with."""
    if status.state == "canceled":
        return RejectedError(f"batch {status.batch_hash} was canceled: {status.message}")
    kind = UnavailableError if status.retriable else RejectedError
    return kind(f"batch {status.batch_hash} failed: {status.message}")


def describe(error: BaseException) -> str:
    return str(error) if isinstance(error, RollbusError) else f"{type(error).__name__}: {error}"


def is_retriable(error: BaseException) -> bool:
    return error.retriable if isinstance(error, RollbusError) else isinstance(error, OSError | MemoryError)
