"""When rewards come: the share that has come by an age, from rewards that came and from those still outstanding.

The product-limit estimate of Kaplan and Meier (JASA 53, 1958), with Greenwood's error on the scale of log(−log S),
which keeps bounds in [0, 1]. An outstanding reward says that it took longer than its present age, and is not a zero.

It rests on one assumption: that an episode is still outstanding says nothing of its reward beyond its age. Where good
rewards come sooner than bad ones, the shares hold and the mean of those that came does not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist

ASSUMPTION = "assumes that rewards still outstanding will come like those of episodes that are older"


@dataclass(frozen=True, slots=True)
class Arrived:
    """By an age, in ms after the episode was assembled: the share of the rewards that has come."""

    age_ms: int
    share: float
    low: float
    high: float
    at_risk: int
    """Episodes that were observed up to this age without a reward."""


def fit_delays(came: Mapping[int, int], outstanding: Mapping[int, int], *, confidence: float = 0.95) -> list[Arrived]:
    """Return the curve: one point per age at which a reward came, oldest last. Both are numbers of episodes by age."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    at_risk = sum(came.values()) + sum(outstanding.values())
    waiting, greenwood, curve = 1.0, 0.0, list[Arrived]()
    for age in sorted(came.keys() | outstanding.keys()):
        if events := came.get(age, 0):
            waiting *= 1 - events / at_risk
            greenwood += events / (at_risk * (at_risk - events)) if at_risk > events else 0.0
            curve.append(Arrived(age, 1 - waiting, *_bounds(waiting, greenwood, z), at_risk))
        at_risk -= events + outstanding.get(age, 0)
    return curve


def share_by(curve: Sequence[Arrived], age_ms: int) -> Arrived:
    """Return the share that has come by an age."""
    before = [point for point in curve if point.age_ms <= age_ms]
    return before[-1] if before else Arrived(0, 0.0, 0.0, 1.0, 0)


def _bounds(waiting: float, greenwood: float, z: float) -> tuple[float, float]:
    if not 0 < waiting < 1:
        return 1 - waiting, 1 - waiting
    half = z * sqrt(greenwood) / abs(log(waiting))
    low, high = (waiting ** exp(sign * half) for sign in (1, -1))
    return 1 - high, 1 - low
