"""A batch that was sent to the service → the report of its job, and the checkpoint that came of it."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

from rollbus.schemas.errors import UnavailableError
from rollbus.trainer.backends.serverless.events import FORGOTTEN, JobReport, report_job
from rollbus.trainer.backends.serverless.service import (
    JobEvent,
    JobForgottenError,
    ServiceCheckpoint,
    ServiceModel,
    TrainingService,
)


@dataclass(frozen=True, slots=True)
class WaitLimits:
    """How long to wait for the service."""

    settle_s: float = 900.0
    """For the checkpoint of a batch whose job is not known, or has ended."""
    silence_s: float = 3600.0
    """For the next event of a job; longer is a failure, and the next attempt at the step follows the job again."""
    job_poll_s: float = 1.0
    """As in ART's own backend."""
    checkpoint_poll_s: float = 5.0


class JobFollower:
    """Asks the service until it has an answer, or until `end` is called."""

    def __init__(self, service: TrainingService, limits: WaitLimits, accept_step: int | None) -> None:
        self.settle_s = limits.settle_s
        self._service, self._limits, self._accept_step = service, limits, accept_step
        self._end_requested = asyncio.Event()

    def end(self) -> None:
        """Make every call that waits raise UnavailableError."""
        self._end_requested.set()

    async def follow_job(self, job_id: str) -> JobReport:
        """Return the report of a job once it has ended, or FORGOTTEN; UnavailableError if it is silent for too long."""
        events: list[JobEvent] = []
        last_event_s = time.monotonic()
        while True:
            try:
                new_events = await self._service.list_events(job_id, events[-1].event_id if events else None)
            except JobForgottenError:
                return FORGOTTEN
            events.extend(new_events)
            report = report_job(events)
            if report.state != "running":
                return report
            last_event_s = time.monotonic() if new_events else last_event_s
            if time.monotonic() - last_event_s > self._limits.silence_s:
                raise UnavailableError(f"job {job_id} at W&B has given no event for {self._limits.silence_s:g} s")
            await self._pause(self._limits.job_poll_s)

    async def wait_for_checkpoint(
        self, model: ServiceModel, *, step_before: int, batch_hash: str, bound_s: float
    ) -> ServiceCheckpoint | None:
        """Return the one checkpoint that has come since a batch was sent; None if there is none in time.

        UnavailableError if more than one has come, unless the newest is the accepted step.
        """
        deadline_s = time.monotonic() + bound_s
        while True:
            newest = await self._service.newest_checkpoint(model.model_id)
            if newest.step == step_before + 1 or self._is_accepted(newest.step, step_before):
                return newest
            if newest.step != step_before:
                raise make_step_error(model, newest.step, step_before, f"batch {batch_hash} was sent once")
            if time.monotonic() >= deadline_s:
                return None
            await self._pause(min(self._limits.checkpoint_poll_s, bound_s))

    async def require_step(self, model: ServiceModel, expected: int) -> int:
        """Return the newest checkpoint's step; UnavailableError if something else has trained the model."""
        newest = await self._service.newest_checkpoint(model.model_id)
        if newest.step != expected and not self._is_accepted(newest.step, expected):
            raise make_step_error(model, newest.step, expected, "nothing was sent")
        return newest.step

    def _is_accepted(self, step: int, before: int) -> bool:
        return step == self._accept_step and step > before

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._end_requested.wait()
        if self._end_requested.is_set():
            raise UnavailableError("the trainer ends; its next start goes on with what was sent, as the journal has it")


def make_step_error(model: ServiceModel, step: int, before: int, what_was_sent: str) -> UnavailableError:
    """Return the error of a model that is at another step than this trainer brought it to."""
    place = f"the model {model.project}/{model.name} is at step {step} at W&B"
    if step < before:
        return UnavailableError(
            f"{place}, and was at {before}: checkpoints have been deleted there. Train under another `name` in another "
            "directory, since the next checkpoint may get the number of a version that exists"
        )
    return UnavailableError(
        f"{place}. It was at {before}, and since then {what_was_sent}: a job that came late has trained its batch once "
        f"more, or something else trains this model. See what made the checkpoints after {before}; to go on from them, "
        f"say `accept_step: {step}`, or train under another `name` in another directory"
    )
