"""The bound of chance, held to integration of its own definition."""

from itertools import pairwise
from math import exp, inf, log, log1p

import numpy as np
import pytest

from rollbus.streams.stages.delivery.evidence.mixture import RHO, bound, log_wealth


def integrate_mixture(total: float, variance: float) -> float:
    """The wager of each size, mixed by numbers: what `log_wealth` has in closed form."""
    sizes = [at / 20_000 for at in range(20_000)]
    density = [(1 - size) ** (RHO - 1) * exp(-RHO * (1 - size)) for size in sizes]
    wagers = [exp(size * total + variance * (log1p(-size) + size)) for size in sizes]
    mixed = [density_at * wager for density_at, wager in zip(density, wagers, strict=True)]
    return log(_area(mixed) / _area(density))


def _area(heights: list[float]) -> float:
    return sum((left + right) / 2 for left, right in pairwise(heights))


@pytest.mark.parametrize(("total", "variance"), [(0.5, 0.0), (3, 5), (20, 40), (50, 300), (15, 0.1)])
def test_the_closed_form_is_the_mixture_of_all_wagers(total: float, variance: float) -> None:
    assert log_wealth(total, variance) == pytest.approx(integrate_mixture(total, variance), abs=1e-4)


def test_a_sum_that_is_not_positive_is_not_evidence() -> None:
    assert log_wealth(0, 10) == log_wealth(-3, 10) == -inf


@pytest.mark.parametrize("variance", [0.0, 1.0, 77.7, 1e4])
def test_the_bound_is_where_the_wager_reaches_its_limit(variance: float) -> None:
    assert log_wealth(bound(variance, 0.025), variance) == pytest.approx(-log(0.025), abs=1e-6)
    assert bound(variance, 0.01) > bound(variance, 0.025)


@pytest.mark.parametrize("good", [0.02, 0.5, 0.97])
def test_chance_alone_passes_the_bound_within_its_rate(good: float) -> None:
    chance = np.random.default_rng(11)
    terms = (chance.random((2_000, 1_500)) < good) - good
    totals, variances = terms.cumsum(1)[:, ::25], (terms**2).cumsum(1)[:, ::25]
    grid = np.linspace(0, 1_600, 1_000)
    limits = np.interp(variances, grid, [bound(float(variance), 0.05) for variance in grid])
    assert (totals > limits).any(1).mean() < 0.05
