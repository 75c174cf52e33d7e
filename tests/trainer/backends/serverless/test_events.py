"""The events of a job → how it ended, and the metrics of the step."""

import math

import pytest

from rollbus.trainer.backends.serverless.events import report_job
from rollbus.trainer.backends.serverless.service import JobEvent

STARTED, ENDED = JobEvent("1", "training_started", {"num_sequences": 2}), JobEvent("9", "training_ended", {})


def test_metrics_are_means_over_the_optimizer_steps_of_a_job() -> None:
    steps = [JobEvent(str(loss), "gradient_step", {"loss/train": loss, "loss/grad_norm": 1.0}) for loss in (1.0, 3.0)]
    report = report_job([STARTED, *steps, ENDED])
    assert (report.state, report.gradient_steps) == ("ended", 2)
    assert report.metrics == {"loss": 2.0, "grad_norm": 1.0, "gradient_steps": 2.0}


@pytest.mark.parametrize(
    ("data", "message"), [({"error_message": "no GPU"}, "no GPU"), ({}, "the service gave no reason")]
)
def test_a_job_that_failed_says_why(data: dict[str, str], message: str) -> None:
    report = report_job([STARTED, JobEvent("2", "training_failed", data)])
    assert (report.state, report.message) == ("failed", message)


def test_an_event_of_an_unknown_kind_does_not_end_a_job() -> None:
    assert report_job([STARTED, JobEvent("2", "checkpoint_saved", {})]).state == "running"


@pytest.mark.parametrize("name", ["loss/train", "loss", "policy_loss", "train/policy_loss"])
def test_the_services_loss_has_our_name(name: str) -> None:
    assert report_job([JobEvent("2", "gradient_step", {name: 0.5}), ENDED]).metrics["loss"] == 0.5


@pytest.mark.parametrize("losses", [(0.5, math.nan), (math.inf, -math.inf)])
def test_a_loss_that_is_not_finite_stays_one_over_the_steps_of_a_job(losses: tuple[float, float]) -> None:
    """The alarm about divergence looks for it."""
    steps = [JobEvent(str(loss), "gradient_step", {"loss/train": loss}) for loss in losses]
    assert math.isnan(report_job([STARTED, *steps, ENDED]).metrics["loss"])
