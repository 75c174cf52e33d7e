"""Adapters on the bus: a submitted epoch is a closed curriculum window, its job the batches that come of it.

The trainer loop takes them to the backend: a process of the run to an ART server, a task in this process to a user's
own adapter (`own_parts`). What became of them is read from the log. What a caller leaves out of the collection that
it submits is excluded before the window closes.
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence
from statistics import fmean
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
from rollbus.nemo.art_server import is_healthy, register
from rollbus.nemo.bus.publish_trajectories import count, id_of
from rollbus.nemo.bus.run_view import RunView
from rollbus.nemo.components import BusTrainerAdapterConfig
from rollbus.nemo.curriculum import CurriculumChoice
from rollbus.nemo.runs.outputs import append_line
from rollbus.nemo.runs.run import Run, current_run
from rollbus.schemas.records.steps import StepCompleted
from rollbus.schemas.records.trajectories import RewardRevised
from rollbus.schemas.topics import TRAJECTORIES
from rollbus.streams.stages.curriculum.modes import Memory
from rollbus.trainer.ledger.log import Publication

logger = logging.getLogger(__name__)

POLL_S = 10.0


class LedgerAdapter(TrainerAdapter):
    """Submits epochs; their jobs are the steps of the ledger."""

    backend = "rollbus_ledger"
    """As job references name it; no backend of a user's own has this name."""

    async def submit(self, trajectories: TrajectoryCollection) -> TrainingJobRef:
        """Publish what is not on the bus yet, close the epoch's window and name the job that comes of it."""
        epoch = self._epoch(trajectories)
        choice = await self.decide(trajectories, epoch)
        number, groups = count(choice.collection), len(choice.collection.trajectories)
        logger.info("Submitted %d trajectories in %d groups for training", number, groups)
        return self.job_of(epoch, run_id=trajectories.run_id, num_trajectories=number, num_groups=groups)

    async def decide(self, trajectories: TrajectoryCollection, epoch: int) -> CurriculumChoice:
        """Close the epoch's window and return what the run's curriculum lets through."""
        await self.run.publish(trajectories, epoch)
        await self._exclude_left_out(trajectories, epoch)
        await self.run.log.end_epoch(epoch)
        return self.read_choice(trajectories, epoch)

    def read_choice(self, trajectories: TrajectoryCollection, epoch: int) -> CurriculumChoice:
        """Return what the run's curriculum has let through of an epoch."""
        view = self.run.log.view
        window, groups = view.windows[epoch], trajectories.trajectories
        positions = {_group_id(view, group): index for index, group in enumerate(groups)}
        included = [positions[group_id] for group_id in window.admitted_group_ids if group_id in positions]
        chosen_groups = [[member for member in groups[index] if not _is_left_out(view, member)] for index in included]
        memory = Memory(window.percentile, window.last_expansion_window, window.total_groups)
        collection = TrajectoryCollection(trajectories=[*filter(None, chosen_groups)], run_id=trajectories.run_id)
        return CurriculumChoice(collection, memory, tuple(included))

    def job_of(self, epoch: int, *, run_id: str = "", **metadata: int) -> TrainingJobRef:
        """Return the job of an epoch whose window is closed."""
        return TrainingJobRef(
            run_id=run_id or self.run.run_id, backend=self.backend, metadata={"epoch": epoch, **metadata}
        )

    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Return the state of the epoch's batches, from the log; a finished job always gets the same answer."""
        await self.run.log.refresh()
        return self._status(ref)

    async def wait_until_complete(self, ref: TrainingJobRef, poll_interval: float = POLL_S) -> TrainingJobStatus:
        """Return once every batch has an outcome: the log is read as it grows, whatever the `poll_interval`."""
        log, running = self.run.log, TrainingStatusEnum.RUNNING
        await log.wait_for(lambda view: self._status(ref).status is not running, "the training of the epoch's batches")
        return self._status(ref)

    def message(self, ref: TrainingJobRef) -> str:
        """Return what is said of a job that has trained."""
        return "Training completed"

    @property
    def run(self) -> Run:
        """The open run."""
        return current_run("rollbus_trainer_adapter")

    def _status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        view, epoch = self.run.log.view, int((ref.metadata or {}).get("epoch", 0))
        if epoch not in view.windows:
            raise ValueError(f"No training job found with run_id {ref.run_id}, epoch {epoch + 1}")
        batches = view.batches_of(epoch)
        metrics = _mean_metrics(
            [view.completed[batch.batch_hash] for batch in batches if batch.batch_hash in view.completed]
        )
        shared: dict[str, Any] = {"run_id": ref.run_id, "backend": ref.backend, "metadata": metrics}
        failures = [view.last_failure(batch.batch_hash) for batch in batches if not view.is_closed(batch.batch_hash)]
        failure = next((failure for failure in failures if failure is not None and failure.final), None)
        skipped = [view.skipped[batch.batch_hash].reason for batch in batches if batch.batch_hash in view.skipped]
        if failure is not None:
            message = troubles.training_failed(failure.message)
            return TrainingJobStatus(status=TrainingStatusEnum.FAILED, message=message, **shared)
        admitted = view.windows[epoch].admitted_group_ids
        ended_groups = sum(view.has_ended(group) for group in admitted)
        if ended_groups < len(admitted):
            message = f"{ended_groups} of {len(admitted)} groups are trained"
            progress = 100.0 * ended_groups / len(admitted)
            return TrainingJobStatus(status=TrainingStatusEnum.RUNNING, progress=progress, message=message, **shared)
        nothing = f"Nothing trained: {', '.join(skipped)}" if skipped else "No trajectories to train on"
        message = self.message(ref) if metrics else nothing
        return TrainingJobStatus(status=TrainingStatusEnum.COMPLETED, progress=100.0, message=message, **shared)

    async def _exclude_left_out(self, trajectories: TrajectoryCollection, epoch: int) -> None:
        log = self.run.log
        submitted_ids = {id_of(member) for group in trajectories.trajectories for member in group}
        revisions = list(_exclusions(log.view, epoch, submitted_ids))
        await log.publish([Publication(TRAJECTORIES, revised.group_hint, revised) for revised in revisions])
        await log.wait_for(  # the trainer reads among the scores what is left out
            lambda view: all(map(view.is_revised, revisions)), f"what was left out of epoch {epoch + 1}"
        )

    def _epoch(self, trajectories: TrajectoryCollection) -> int:
        for group in trajectories.trajectories:
            for member in group:
                if member.metadata and "epoch" in member.metadata:
                    return int(member.metadata["epoch"])
        return self.run.log.view.next_epoch()


class BusTrainerAdapter(LedgerAdapter):
    """Trains on an ART server."""

    backend = "openpipe_art"

    def __init__(self, adapter_config: BusTrainerAdapterConfig) -> None:
        super().__init__(adapter_config)
        self.config = adapter_config
        self.health_url: str | None = adapter_config.backend.health_url
        """Asked for health; None where the run's backend is in memory."""

    async def initialize(self, run_config: FinetuneConfig) -> None:
        """Take in the configuration; raises UnavailableError where the configured address does not answer."""
        await super().initialize(run_config)
        if self.run.plan.art_backend is None:
            self.health_url = None
            return
        if not await self.is_healthy():
            raise troubles.no_connection(self.config.backend.url)
        await register(self.config.backend)

    async def is_healthy(self) -> bool:
        """Ask the configured address."""
        return self.health_url is None or await asyncio.to_thread(is_healthy, self.health_url)

    def log_progress(self, ref: TrainingJobRef, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        """Append a line to trainer_adapter_<run>.jsonl."""
        trainer_config = self.config.backend.model_dump(include={"base_model", "project", "name"})
        line = {"run_id": ref.run_id, "backend": ref.backend, "trainer_config": trainer_config, **metrics}
        folder = output_dir or self.run_config.output_dir
        append_line(os.path.join(folder, f"trainer_adapter_{ref.run_id}.jsonl"), line)


def _mean_metrics(steps: Sequence[StepCompleted]) -> dict[str, Any]:
    """Return what steps measured, on average, and the weights that came of them."""
    if not steps:
        return {}
    names = sorted(set.intersection(*(set(step.metrics) for step in steps)))
    means = {name: fmean(step.metrics[name] for step in steps) for name in names}
    return {"policy_version": steps[-1].policy_version, "steps": len(steps), **means}


def _exclusions(view: RunView, epoch: int, submitted_ids: set[str | None]) -> Iterable[RewardRevised]:
    """Yield an exclusion for every trajectory of the epoch that is grouped and was not submitted."""
    for trajectory_id in view.trajectory_ids_of(epoch):
        if trajectory_id in view.group_id_by_trajectory and trajectory_id not in submitted_ids:
            record = view.trajectories[trajectory_id]
            yield RewardRevised(
                trajectory_id=trajectory_id,
                episode_id=record.episode_id,
                group_hint=record.group_hint,
                revision=view.revisions.get(trajectory_id, 0) + 1,
                rewards=record.rewards,
                excluded=True,
                revised_at_ms=record.assembled_at_ms,
            )


def _group_id(view: RunView, group: Sequence[Trajectory]) -> str | None:
    group_ids = (view.group_id_by_trajectory.get(id_of(member) or "") for member in group)
    return next(filter(None, group_ids), None)


def _is_left_out(view: RunView, trajectory: Trajectory) -> bool:
    return view.drop_reasons.get(id_of(trajectory) or "", "").startswith(("curriculum", "excluded"))
