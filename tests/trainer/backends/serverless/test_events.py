"""The events of a job → how it ended, and the metrics of the step."""

import math

import pytest

from rollbus.trainer.backends.serverless.events import name_metrics, report_job
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


def test_only_finite_numbers_are_metrics() -> None:
    values = {"policy_loss": 0.5, "tokens_per_second": 7, "entropy": math.nan, "is_late": True, "name": "x"}
    assert name_metrics(values) == {"loss": 0.5, "service_tokens_per_second": 7.0}
