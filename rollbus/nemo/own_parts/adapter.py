"""A user's own TrainerAdapter behind the trainer loop: its jobs are steps of the ledger, as everyone's are.

    curriculum window ─▶ batch ─▶ trainer loop, in this process ─▶ submit, wait_until_complete ─▶ StepCompleted

It trains on messages, so members need no tokens. What it trained is in a journal in the run's folder: a batch that has
its result is not submitted again. A job that a kill interrupts has none, and is.
"""

import sys
from typing import Any

from nat.data_models.finetuning import (
    FinetuneConfig,
    TrainingJobRef,
    TrainingJobStatus,
    TrainingStatusEnum,
    Trajectory,
    TrajectoryCollection,
)
from nat.finetuning.interfaces.trainer_adapter import TrainerAdapter

from rollbus.nemo import troubles
from rollbus.nemo.bus.publish_trajectories import has_pairs, id_of
from rollbus.nemo.runs.run import Run
from rollbus.nemo.trainer_adapter import LedgerAdapter
from rollbus.schemas.errors import RejectedError, RollbusError, UnavailableError
from rollbus.trainer.backends.durable.journaled import JournaledBackend
from rollbus.trainer.backends.protocol import Capabilities, TrainRequest, TrainResult


class OwnAdapter(LedgerAdapter):
    """The ledger's side of a user's adapter, whose own methods it keeps to call."""

    def __init__(self, inner: TrainerAdapter) -> None:
        super().__init__(inner.adapter_config)
        self.inner = inner
        self.initialize_inner, self.submit_inner = inner.initialize, inner.submit
        self.status_of_inner, self.wait_for_inner = inner.status, inner.wait_until_complete
        self.submitted: dict[str | None, Trajectory] = {}
        """What is not trained yet, by trajectory id."""
        self.last_message: str | None = None
        """Of the job that ended last."""

    async def initialize(self, run_config: FinetuneConfig) -> None:
        """Initialize the user's adapter, and begin to bring it the run's batches."""
        await super().initialize(run_config)
        await self.initialize_inner(run_config)
        if not await self.inner.is_healthy():
            raise UnavailableError(f"{type(self.inner).__name__}.is_healthy says no; see that its backend runs")
        await self.run.host(AdapterBackend(self, self.run))

    async def is_healthy(self) -> bool:
        """Ask the user's adapter."""
        return await self.inner.is_healthy()

    async def submit(self, trajectories: TrajectoryCollection) -> TrainingJobRef:
        """Submit an epoch; preference pairs, which are not episodes, go to the user's adapter as they are."""
        if has_pairs(trajectories):
            return await self.submit_inner(trajectories)
        self.submitted |= {id_of(member): member for group in trajectories.trajectories for member in group}
        return await super().submit(trajectories)

    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Return the state of a job, by the ledger where it is there."""
        return await (super().status(ref) if ref.backend == self.backend else self.status_of_inner(ref))

    async def wait_until_complete(self, ref: TrainingJobRef, poll_interval: float | None = None) -> TrainingJobStatus:
        """Wait for a job, by the ledger where it is there; without an interval, the user's adapter takes its own."""
        if ref.backend == self.backend:
            return await super().wait_until_complete(ref)
        arguments = () if poll_interval is None else (poll_interval,)
        return await self.wait_for_inner(ref, *arguments)

    def log_progress(self, ref: TrainingJobRef, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        """Leave it to the user's adapter."""
        self.inner.log_progress(ref, metrics, output_dir)

    def message(self, ref: TrainingJobRef) -> str:
        """Return what the user's adapter said last."""
        return self.last_message or super().message(ref)


def on_ledger(adapter: TrainerAdapter) -> LedgerAdapter:
    """Return the ledger's side of an adapter; from then on the jobs of a user's own adapter are steps of the ledger.

    The adapter itself stays what its trainer holds, with every attribute: four of its methods lead to the ledger.
    """
    owner = getattr(adapter.submit, "__self__", None)
    if isinstance(owner, LedgerAdapter):
        return owner
    ledger = OwnAdapter(adapter)
    adapter.initialize, adapter.submit = ledger.initialize, ledger.submit  # type: ignore[method-assign]
    adapter.status = ledger.status  # type: ignore[method-assign]
    adapter.wait_until_complete = ledger.wait_until_complete  # type: ignore[method-assign]
    return ledger


class AdapterBackend(JournaledBackend):
    """Fulfils `Backend` by a user's adapter."""

    def __init__(self, adapter: OwnAdapter, run: Run) -> None:
        super().__init__(run.plan.model, run.folder)
        self._adapter, self._finetune_run = adapter, run

    async def capabilities(self) -> Capabilities:
        """Return what the trainer loop should know."""
        return Capabilities(
            type(self._adapter.inner).__name__, self._model, sys.maxsize, False, None, prepares=True, trains_text=True
        )

    async def train(self, request: TrainRequest) -> None:
        """Let the adapter train; RejectedError where its job does not complete."""
        self.check_request(request)
        status = await self._job(self._collection(request))
        if status.status is not TrainingStatusEnum.COMPLETED:
            raise RejectedError(f"the job was {status.status.value}: {status.message or 'it does not say why'}")
        self._adapter.last_message = status.message
        metadata = status.metadata or {}
        numbers = {str(name): troubles.as_number(value) for name, value in metadata.items()}
        ids = tuple(trajectory.trajectory_id for trajectory in request.trajectories)
        for trajectory_id in ids:
            self._adapter.submitted.pop(trajectory_id, None)
        self.record_result(
            TrainResult(
                batch_hash=request.batch_hash,
                base_version=request.base_version,
                version=self.next_version(),
                state="completed",
                trained_ids=ids,
                dropped={},
                metrics={name: number for name, number in numbers.items() if number is not None},
                checkpoint=str(metadata.get("checkpoint") or ""),
            )
        )

    async def _job(self, collection: TrajectoryCollection) -> TrainingJobStatus:
        kind = type(self._adapter.inner).__name__
        try:
            ref = await self._adapter.submit_inner(collection)
            troubles.require_type(ref, TrainingJobRef, f"{kind}.submit")
            status = await self._adapter.wait_for_inner(ref)
            troubles.require_type(status, TrainingJobStatus, f"{kind}.wait_until_complete")
        except RollbusError as error:
            raise RejectedError(str(error)) from error
        except Exception as error:  # a user's adapter may raise anything
            raise RejectedError(troubles.describe_crash(error)) from error
        return status

    def _collection(self, request: TrainRequest) -> TrajectoryCollection:
        groups: dict[str, list[Trajectory]] = {}
        for trajectory in request.trajectories:
            trajectory_id = trajectory.trajectory_id
            submitted = self._adapter.submitted.get(trajectory_id)
            groups.setdefault(trajectory.group_id, []).append(
                submitted or self._finetune_run.trajectory(trajectory_id, trajectory.reward)
            )
        return TrajectoryCollection(trajectories=list(groups.values()), run_id=request.run_id)
