"""What has become of a batch that was sent: a job is followed to its end, and its checkpoint is waited for."""

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
    """How long the service is waited for."""

    settle_s: float = 900.0
    """For the checkpoint of a batch whose job is not known, or has ended."""
    silence_s: float = 3600.0
    """For the next event of a job; longer is a failure, and the job is followed on when the step is tried again."""
    job_poll_s: float = 1.0
    """As ART's own backend."""
    checkpoint_poll_s: float = 5.0


class JobFollower:
    """Asks until there is an answer, or until `end`."""

    def __init__(self, service: TrainingService, waiting: WaitLimits, accept_step: int | None) -> None:
        self.settle_s = waiting.settle_s
        self._service, self._waiting, self._accept_step = service, waiting, accept_step
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Let what waits fail with UnavailableError."""
        self._ending.set()

    async def follow_job(self, job_id: str) -> JobReport:
        """Return what a job has come to, when it has ended, or is not known.

        UnavailableError if it is silent for too long.
        """
        events: list[JobEvent] = []
        heard_s = time.monotonic()
        while True:
            try:
                newer = await self._service.list_events(job_id, events[-1].event_id if events else None)
            except JobForgottenError:
                return FORGOTTEN
            events.extend(newer)
            report = report_job(events)
            if report.state != "running":
                return report
            heard_s = time.monotonic() if newer else heard_s
            if time.monotonic() - heard_s > self._waiting.silence_s:
                raise UnavailableError(f"job {job_id} at W&B has given no event for {self._waiting.silence_s:g} s")
            await self._pause(self._waiting.job_poll_s)

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
                raise unexpected_step(model, newest.step, step_before, f"batch {batch_hash} was sent once")
            if time.monotonic() >= deadline_s:
                return None
            await self._pause(min(self._waiting.checkpoint_poll_s, bound_s))

    async def require_step(self, model: ServiceModel, expected: int) -> int:
        """Return the newest checkpoint's step; UnavailableError if something else has trained the model."""
        newest = await self._service.newest_checkpoint(model.model_id)
        if newest.step != expected and not self._is_accepted(newest.step, expected):
            raise unexpected_step(model, newest.step, expected, "nothing was sent")
        return newest.step

    def _is_accepted(self, step: int, before: int) -> bool:
        return step == self._accept_step and step > before

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()
        if self._ending.is_set():
            raise UnavailableError("the trainer ends; its next start goes on with what was sent, as the journal has it")


def unexpected_step(model: ServiceModel, step: int, before: int, sent: str) -> UnavailableError:
    """Return the error of a model that is at another step than this trainer brought it to."""
    place = f"the model {model.project}/{model.name} is at step {step} at W&B"
    if step < before:
        return UnavailableError(
            f"{place}, and was at {before}: checkpoints have been deleted there. Train under another `name` in another "
            "directory, since the next checkpoint may get the number of a version that exists"
        )
    return UnavailableError(
        f"{place}. It was at {before}, and since then {sent}: a job that came late has trained its batch once more, or "
        f"something else trains this model. See what made the checkpoints after {before}; to go on from them, say "
        f"`accept_step: {step}`, or train under another `name` in another directory"
    )
