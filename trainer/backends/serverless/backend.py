"""A batch → one version, at a service that gives out a job's id only in its answer and knows no batch.

The order: the journal says which batch is about to be sent, and at which checkpoint the model is → the batch is sent,
once → the journal has the job's id → the job is followed to its end → its checkpoint is the version, and the journal
has it with the result.

After a crash a job whose id is known is followed on. Without the id, one more checkpoint than before is that batch's:
nothing else trains the model. If none comes in time the batch is sent again. Two more checkpoints than before
are taken for nothing: the step fails and says so.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path

from rollbus.schemas.errors import ConfigurationError, RejectedError, UnavailableError
from rollbus.schemas.records.drops import DropReason
from rollbus.trainer.backends.admission import Admitted, Limits, admit, make_result, make_skipped_result
from rollbus.trainer.backends.durable.folder_lock import FolderLock
from rollbus.trainer.backends.durable.journaled import JournaledBackend
from rollbus.trainer.backends.durable.retention import BASE_VERSION
from rollbus.trainer.backends.model_settings import Retention
from rollbus.trainer.backends.outcomes import name_service_metrics
from rollbus.trainer.backends.protocol import Capabilities, TrainRequest, TrainResult, Versions, WeightsVersion
from rollbus.trainer.backends.serverless.batches import find_singles, make_job_config, require_supported
from rollbus.trainer.backends.serverless.events import FORGOTTEN, LOSS_NAMES, JobReport
from rollbus.trainer.backends.serverless.follower import JobFollower, WaitLimits
from rollbus.trainer.backends.serverless.service import (
    JobNotTakenError,
    ServiceCheckpoint,
    ServiceModel,
    TrainingService,
)
from rollbus.trainer.backends.wire import from_json, to_json

logger = logging.getLogger(__name__)

NAME = "art-serverless"
ROLLBACK_REMEDY = (
    "train another `name` of the project, with a run and a directory of its own: from the base model, or from a "
    "checkpoint that was copied there (ART's `_experimental_fork_checkpoint`)"
)
HEALTH_TIMEOUT_S = 5.0
TOKEN_IDS = 2**31
"""Of an int32: the service knows its vocabulary, this side does not."""


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch that was about to be sent, and may train."""

    step_before: int
    """Newest checkpoint before."""
    draft: TrainResult
    """Without version, checkpoint and metrics."""
    job_id: str | None = None
    """None where the answer of the service was not written down."""


class ServerlessBackend(JournaledBackend):
    """Fulfils `Backend`; call `start` before anything else. A version's number is the checkpoint's step."""

    def __init__(
        self,
        model: str,
        service: TrainingService,
        directory: Path,
        *,
        max_tokens: int,
        retention: Retention | None = None,
        accept_step: int | None = None,
        limits: WaitLimits | None = None,
    ) -> None:
        self.service, self._max_tokens, self._accept_step = service, max_tokens, accept_step
        self._retention = retention or Retention()
        self._follower = JobFollower(service, limits or WaitLimits(), accept_step)
        self._sent_batch: SentBatch | None = None
        self._base: dict[str, object] | None = None
        self._base_step = 0
        """Of version 0 at the service."""
        self._service_model: ServiceModel | None = None
        super().__init__(model, directory, lock=FolderLock(directory))

    @property
    def service_model(self) -> ServiceModel:
        """Return the model at the service, known after `start`."""
        if self._service_model is None:
            raise UnavailableError("the backend has not been started")
        return self._service_model

    async def start(self) -> None:
        """Make or find the model. ConfigurationError if it is not the one of this folder, or was trained elsewhere."""
        model = self._service_model = await self.service.open_model()
        identity = {name: getattr(model, name) for name in ("model_id", "entity", "project", "name", "base_model")}
        if self._base is None:
            step = (await self.service.newest_checkpoint(model.model_id)).step
            if step not in (0, self._accept_step):
                raise ConfigurationError(
                    f"the model {model.project}/{model.name} has been trained before, up to step {step}, and this "
                    f"folder knows nothing of it; choose another `name`, or begin from there with `accept_step: {step}`"
                )
            self._record({"kind": "base", "step": step, "checkpoint": model.name_step(step), **identity})
        for name, value in identity.items():
            if self._base is not None and self._base[name] != value:
                raise ConfigurationError(
                    f"the versions of {self._model!r} in this folder are of a model with {name} {self._base[name]!r}, "
                    f"the service has {value!r}; put the settings back, or give this model another directory"
                )

    async def is_healthy(self) -> bool:
        """Ask the service."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                await self.service.newest_checkpoint(self.service_model.model_id)
        except (UnavailableError, RejectedError, TimeoutError):
            return False
        return True

    async def capabilities(self) -> Capabilities:
        """Return what a trainer should know."""
        return Capabilities(
            NAME,
            self._model,
            self._max_tokens,
            deterministic=False,
            inference_url=None,
            rolls_back=False,
            serves_on_request=True,
            rollback_remedy=ROLLBACK_REMEDY,
        )

    async def versions(self) -> Versions:
        """Return every version that is still at the service."""
        tree = self.weights_tree
        stored = tuple(
            WeightsVersion(version, parent, batch_hash, tree.checkpoints[version], loaded=version == tree.serving)
            for version, (parent, batch_hash) in sorted(tree.versions.items())
            if version not in tree.retired
        )
        return Versions(tree.head, tree.serving, stored)

    async def promote(self, version: int, *, rollback: bool = False) -> None:
        """Name the version that serves: W&B's inference answers under all their names."""
        if version in self.weights_tree.retired:
            raise RejectedError(f"version {version} of {self._model!r} has no checkpoint; retention removed it")
        if rollback and version in self.weights_tree.versions and version != self.weights_tree.head:
            raise RejectedError(
                f"W&B's serverless training goes on from its newest checkpoint, {self.weights_tree.head}, and cannot "
                f"go back to {version}; {ROLLBACK_REMEDY}"
            )
        await super().promote(version, rollback=rollback)

    async def train(self, request: TrainRequest) -> None:
        """Make one version, or none if there is nothing to train; serve it if asked."""
        began_s = time.monotonic()
        result = await self._settle_earlier(request)
        if result is None:
            self.check_request(request)
            result = await self._train_batch(request, began_s)
        if request.serve and result.state == "completed":
            await self.promote(result.version)
        await self._retire(request.config.kl_reference_version)

    async def close(self) -> None:
        """Stop following a job, which the journal knows; let go of service and folder."""
        self._follower.end()
        await super().close()
        await self.service.close()
        self._release_folder()

    async def _train_batch(self, request: TrainRequest, began_s: float) -> TrainResult:
        require_supported(request.config, request.trajectories)
        admitted = self._admit(request)
        if not admitted.trajectories:
            result = make_skipped_result(request, admitted)
            self.record_result(result)
            return result
        head = self.weights_tree.head
        step_before = await self._follower.require_step(
            self.service_model, self._base_step if head == BASE_VERSION else head
        )
        draft = make_result(request, admitted, request.base_version, {}, "")
        self._record({"kind": "sending", "step_before": step_before, "draft": to_json(draft)})
        job_id = await self._send(request, admitted)
        self._record({"kind": "job", "job_id": job_id})
        trained = await self._settle(SentBatch(step_before, draft, job_id), began_s)
        if trained is None:
            raise UnavailableError(f"job {job_id} of batch {request.batch_hash} is gone, and made no checkpoint")
        return trained

    def _admit(self, request: TrainRequest) -> Admitted:
        """Leave out what cannot be trained, and what ART would leave out."""
        lineage = self.weights_tree.lineage(request.base_version)
        admitted = admit(request, Limits(self._max_tokens, TOKEN_IDS, lineage), temperatures=False)
        singles = find_singles(admitted.trajectories)
        members = tuple(member for member in admitted.trajectories if member.trajectory_id not in singles)
        return Admitted(members, admitted.dropped | dict.fromkeys(sorted(singles), str(DropReason.NO_SIGNAL)))

    async def _send(self, request: TrainRequest, admitted: Admitted) -> str:
        """Begin the job. An error after which it has surely not begun is noted, so that nothing is waited for."""
        try:
            return await self.service.begin_job(
                self.service_model.model_id, admitted.trajectories, make_job_config(request.config)
            )
        except (RejectedError, JobNotTakenError):
            self._record({"kind": "not_trained", "batch_hash": request.batch_hash})
            raise

    async def _settle_earlier(self, request: TrainRequest) -> TrainResult | None:
        """Find out what became of the batch that was sent before; return the result if it is this one."""
        sent_batch = self._sent_batch
        if sent_batch is None:
            return None
        is_this_one = sent_batch.draft.batch_hash == request.batch_hash
        try:
            result = await self._settle(sent_batch)
        except RejectedError:
            if is_this_one:
                raise
            return None
        return result if is_this_one else None

    async def _settle(self, sent_batch: SentBatch, began_s: float | None = None) -> TrainResult | None:
        """Return the result of a batch that was sent, when it has one; None if it is to be sent again.

        UnavailableError if that is open, or the job failed; RejectedError if it trained nothing.
        """
        batch_hash = sent_batch.draft.batch_hash
        job = FORGOTTEN if sent_batch.job_id is None else await self._follower.follow_job(sent_batch.job_id)
        bound_s = 0.0 if job.state == "failed" else self._follower.settle_s
        if job.state == "forgotten":
            waited_for = "batch %s may have been sent: a checkpoint after step %d is waited for, at most %g s"
            logger.warning(waited_for, batch_hash, sent_batch.step_before, bound_s)
        checkpoint = await self._follower.wait_for_checkpoint(
            self.service_model, step_before=sent_batch.step_before, batch_hash=batch_hash, bound_s=bound_s
        )
        if checkpoint is not None:
            return self._record_version(sent_batch, job, checkpoint, began_s)
        if job.state == "ended" and job.gradient_steps:
            raise UnavailableError(
                f"job {sent_batch.job_id} of batch {batch_hash} ended after {job.gradient_steps} optimizer steps, and "
                f"no checkpoint after step {sent_batch.step_before} has come within {bound_s:g} s; look at the job at "
                "W&B"
            )
        if job.state == "forgotten":  # the journal keeps it until a batch is sent: its checkpoint may still come
            logger.warning("no checkpoint came of batch %s; it is sent again", batch_hash)
            return None
        self._record({"kind": "not_trained", "batch_hash": batch_hash})
        if job.state == "failed":
            raise UnavailableError(f"job {sent_batch.job_id} of batch {batch_hash} failed at W&B: {job.message}")
        raise RejectedError(f"W&B found nothing to train in batch {batch_hash}, although it was admitted")

    def _record_version(
        self, sent: SentBatch, job: JobReport, checkpoint: ServiceCheckpoint, began_s: float | None
    ) -> TrainResult:
        reported = job.metrics or name_service_metrics(checkpoint.metrics, loss_names=LOSS_NAMES)
        metrics = {**sent.draft.metrics, **reported}
        if began_s is not None:
            metrics["update_seconds"] = time.monotonic() - began_s
        if job.state in ("failed", "forgotten"):
            logger.warning(
                "checkpoint %d is taken for that of batch %s, whose job %s",
                *(checkpoint.step, sent.draft.batch_hash, job.message or "is not known"),
            )
        name = self.service_model.name_step(checkpoint.step)
        result = replace(sent.draft, version=checkpoint.step, checkpoint=name, metrics=metrics)
        self.record_result(result)
        return result

    async def _retire(self, reference: int) -> None:
        """Delete what retention does not keep. A failure only costs W&B's storage."""
        steps = self.weights_tree.find_expendable(self._retention, in_use={reference})
        for version in steps:
            self._record({"kind": "retired", "version": version})
        if steps:
            try:
                await self.service.delete_checkpoints(self.service_model.model_id, steps)
            except (UnavailableError, RejectedError) as error:
                logger.warning("the versions %s of %s are not deleted at W&B: %s", steps, self._model, error)

    def _apply(self, entry: dict[str, object]) -> None:
        match entry:
            case {"kind": "base", "step": int(step), "checkpoint": str(checkpoint)}:
                self.weights_tree.checkpoints[BASE_VERSION] = checkpoint
                self._base, self._base_step = entry, step
            case {"kind": "sending", "step_before": int(step), "draft": dict(draft)}:
                self._sent_batch = SentBatch(step, from_json(TrainResult, draft))
            case {"kind": "job", "job_id": str(job_id)} if self._sent_batch is not None:
                self._sent_batch = replace(self._sent_batch, job_id=job_id)
            case {"kind": "trained" | "not_trained"}:
                self._sent_batch = None
        super()._apply(entry)
