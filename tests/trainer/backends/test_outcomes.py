"""What a training service reports of a step → metrics by names that are not taken for others of ours."""

import math

import pytest

from rollbus.trainer.backends.outcomes import name_service_metrics


def test_only_the_gradient_norm_of_the_service_has_our_name() -> None:
    figures = {"optim/grad_norm": 1.0, "loss/entropy": 2.0, "loss:sum": 3, "tokens_per_second": 7}
    assert name_service_metrics(figures) == {
        "grad_norm": 1.0,
        "service_entropy": 2.0,
        "service_loss:sum": 3.0,
        "service_tokens_per_second": 7.0,
    }


def test_a_loss_takes_the_place_of_ours_only_where_it_is_named() -> None:
    assert name_service_metrics({"loss": 0.5}) == {"service_loss": 0.5}
    assert name_service_metrics({"loss": 0.5}, loss_names=("loss",)) == {"loss": 0.5}


def test_what_is_no_number_is_no_metric() -> None:
    assert name_service_metrics({"is_late": True, "name": "x", "nothing": None, "loads": [1]}) == {}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_stays(value: float) -> None:
    """The alarm about divergence looks for it."""
    assert name_service_metrics({"grad_norm": value}) == pytest.approx({"grad_norm": value}, nan_ok=True)
