"""Metrics of the last steps → a `Divergence`, if training diverges: the run is then paused, with what to look at.

A limit is passed if the median over the window is beyond it, so that one odd batch stops nothing. A metric that
the backend does not report, or whose limit is None, is ignored. A loss or a gradient that is not finite over the
window needs no limit.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from rollbus.schemas.ids import stable_id

if TYPE_CHECKING:  # settings take the limits from here, without the records
    from rollbus.schemas.records.control import RunCommand, RunCommandName

Metrics = Mapping[str, float]
WINDOW_STEPS = 5
"""The median of so many steps is beyond a limit only if three of them are: two odd batches stop nothing."""


class CollapseLimits(BaseModel):
    """What pauses the run: a little more than runs without a collapse reached at lags up to 4 (docs/staleness.md)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    mismatch_kl: float | None = Field(default=1.0, gt=0)
    """Mean of r − 1 − log r; 0.94 at most in those runs."""
    clip_fraction: float | None = Field(default=0.5, gt=0, le=1)
    """For ppo, 0.18 at most, and 0.40 unharmed at lag 8; cispo's never exceeds a few percent."""
    effective_sample_size: float | None = Field(default=0.1, gt=0, le=1)
    """Least share of tokens that still counts; 1 on-policy, 0.21 at least in those runs."""
    grad_norm: float | None = Field(default=None, gt=0)
    """Before clipping; depends on the model, so there is no default limit."""
    entropy: float | None = Field(default=None, gt=0)
    """Least entropy per token, in nats; depends on the task."""


@dataclass(frozen=True, slots=True)
class Divergence:
    metric: str
    value: float
    """Median over the window."""
    limit: float
    first_step: int
    last_step: int

    def message(self, run_id: str) -> str:
        """Return what happened, and what to do."""
        side = "below" if self.metric in _LEAST else "above"
        value = f"{self.value:.4g}, {side} {self.limit:g}" if math.isfinite(self.value) else "not finite"
        return (
            f"run {run_id!r} is paused: the median {self.metric} of steps {self.first_step} to {self.last_step} is "
            f"{value}; {_REMEDIES[self.metric]}. `rollbus trainer resume` goes on, "
            "`rollbus policy rollback` first goes back to an earlier version"
        )


_LEAST = frozenset({"effective_sample_size", "entropy"})
"""Metrics whose limit is a lower one."""
_LARGEST = sys.float_info.max
"""The limit of what need only be finite."""
_FINITE = frozenset({"loss", "grad_norm"})
"""Metrics that are watched without a limit, too: a loss or a gradient that is not finite makes every weight NaN."""

_OTHER_NAMES = {
    "loss": ("loss/train",),
    "grad_norm": ("loss/grad_norm",),
    "entropy": ("loss/entropy", "service_entropy"),
}
"""What ART's own engine calls a metric, and how a service's figure is recorded."""

_REMEDIES = {
    "loss": "the update computes no number: look at the advantages and log-probs of these steps, and roll back",
    "mismatch_kl": "trainer and sampler disagree: look at lags, temperature and log-prob mode, or lower learning_rate",
    "clip_fraction": "the policy has left the data: lower learning_rate or max_off_policy_steps",
    "effective_sample_size": "few tokens carry the gradient: lower max_off_policy_steps or ratio_max",
    "grad_norm": "look at the advantages of these steps, or lower learning_rate",
    "entropy": "the policy has collapsed: roll back, then lower learning_rate or raise epsilon_high",
}


def find_alarm(
    steps: Sequence[tuple[int, Metrics]], limits: CollapseLimits, window_steps: int = WINDOW_STEPS
) -> Divergence | None:
    """Return the first limit passed by the last steps, given with their numbers; None before the window is full."""
    recent = steps[-window_steps:]
    if len(recent) < window_steps:
        return None
    for metric in _REMEDIES:
        limit: float | None = getattr(limits, metric, None)
        if limit is None and metric in _FINITE:
            limit = _LARGEST
        values = [value for _, metrics in recent if (value := _find_value(metrics, metric)) is not None]
        if limit is None or len(values) < len(recent):
            continue
        median_value = median(_as_ordered(metric, value) for value in values)
        if median_value < limit if metric in _LEAST else median_value > limit:
            return Divergence(metric, median_value, limit, recent[0][0], recent[-1][0])
    return None


def _find_value(metrics: Metrics, metric: str) -> float | None:
    """Return a metric's value, by its own name or else by one that a backend has for it."""
    names = (metric, *_OTHER_NAMES.get(metric, ()))
    return next((metrics[name] for name in names if name in metrics), None)


def _as_ordered(metric: str, value: float) -> float:
    """Return a value with an order: NaN, and −∞ of a metric that must be finite, count as beyond any limit."""
    if math.isnan(value) or (metric in _FINITE and math.isinf(value)):
        return -math.inf if metric in _LEAST else math.inf
    return value


def pause_for(divergence: Divergence, run_id: str) -> "RunCommand":
    """Return the command that pauses the run; the same divergence gives the same command."""
    from rollbus.schemas.records.control import RunCommand

    return RunCommand(
        run_id=run_id,
        command="pause",
        command_id=stable_id("alarm", run_id, divergence.metric, divergence.last_step),
        comment=divergence.message(run_id),
    )


def find_pause(commands: Sequence["RunCommand"]) -> "RunCommand | None":
    """Return the pause that holds after these commands of a run, given in order; None if there is none."""
    return _find_command_in_force(commands, "pause")


def find_stop(commands: Sequence["RunCommand"]) -> "RunCommand | None":
    """Return the stop that holds after these commands of a run, given in order; None if there is none."""
    return _find_command_in_force(commands, "stop")


def _find_command_in_force(commands: Sequence["RunCommand"], name: "RunCommandName") -> "RunCommand | None":
    in_force: RunCommand | None = None
    for command in commands:
        if command.command in (name, "resume"):
            in_force = command if command.command == name else None
    return in_force
