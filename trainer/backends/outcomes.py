"""How a service elsewhere reports a step, in the names of our metrics. Pure."""

from collections.abc import Collection, Mapping
from typing import Any

GRAD_NORM = "grad_norm"


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
