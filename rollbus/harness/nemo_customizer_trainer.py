"""Collect pairs in one or several passes, write them down, submit one job."""

import logging
import random
from pathlib import Path
from typing import Any

from rollbus.harness.dpo_components import NeMoCustomizerTrainerConfig
from rollbus.harness.episodes import (
    DPOItem,
    TrainingJobRef,
    TrainingJobStatus,
    Trajectory,
    TrajectoryCollection,
)
from rollbus.harness.interfaces import Trainer
from rollbus.harness.outputs import append_line
from rollbus.schemas.ids import content_hash

logger = logging.getLogger(__name__)

PAIRS_FILE = "dpo_pairs.jsonl"


class NeMoCustomizerTrainer(Trainer):
    """One job for all passes; `num_epochs` is the job's own (`hyperparameters.epochs`)."""

    def __init__(self, trainer_config: NeMoCustomizerTrainerConfig, **kwargs: Any) -> None:
        super().__init__(trainer_config, **kwargs)
        self.config = trainer_config
        self.run_id = "dpo"
        self._groups: list[list[Trajectory]] = []
        self._statuses: list[TrainingJobStatus] = []

    async def run(self, num_epochs: int) -> list[TrainingJobStatus]:
        """Collect, submit, and wait where configured."""
        for number in range(self.config.num_runs):
            try:
                await self.run_epoch(number, self.run_id)
            except Exception:
                if not self.config.continue_on_collection_error:
                    raise
                logger.exception("pass %d of %d failed; the others continue", number + 1, self.config.num_runs)
        collection = self._collection()
        _write(Path(self.run_config.output_dir) / PAIRS_FILE, collection)
        ref = await self.trainer_adapter.submit(collection)
        if self.config.wait_for_completion:
            status = await self.trainer_adapter.wait_until_complete(ref)
        else:
            status = await self.trainer_adapter.status(ref)
        self._statuses = [status]
        self.log_progress(0, {"num_pairs": collection.count(), "status": status.status.value})
        self.trainer_adapter.log_progress(ref, {"status": status.status.value})
        return self._statuses

    async def run_epoch(self, epoch: int, run_id: str) -> TrainingJobRef | None:
        """Collect one pass; the job comes after all of them."""
        logger.info("Starting pass %d of %d for run %s", epoch + 1, self.config.num_runs, run_id)
        await self.trajectory_builder.start_run(run_id, {"epoch": epoch})
        collection = await self.trajectory_builder.finalize(run_id, {"epoch": epoch})
        self._groups += collection.trajectories
        self.trajectory_builder.log_progress(run_id, {"epoch": epoch, "num_pairs": collection.count()})
        return None

    def apply_curriculum_learning(
        self, trajectory_collection: TrajectoryCollection, epoch: int
    ) -> TrajectoryCollection:
        """Return everything: preferences have no curriculum."""
        return trajectory_collection

    async def get_metrics(self, run_id: str) -> dict[str, Any]:
        """Return how the job ended."""
        states = [status.status.value for status in self._statuses]
        return {"run_id": run_id, "num_pairs": sum(map(len, self._groups)), "statuses": states}

    async def cleanup(self) -> None:
        """Close the adapter's connections."""
        close = getattr(self.trainer_adapter, "close", None)
        if close is not None:
            await close()

    def log_progress(self, epoch: int, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        """Append a line to training_metrics.jsonl."""
        folder = Path(output_dir or self.run_config.output_dir)
        append_line(folder / "training_metrics.jsonl", {"epoch": epoch, "run_id": self.run_id, **metrics})

    def _collection(self) -> TrajectoryCollection:
        pairs = [trajectory for group in self._groups for trajectory in group]
        if self.config.deduplicate_pairs:
            pairs = list({_identity(one): one for one in reversed(pairs)}.values())[::-1]
        if self.config.max_pairs is not None and len(pairs) > self.config.max_pairs:
            kept = sorted(random.Random(self.run_id).sample(range(len(pairs)), self.config.max_pairs))
            pairs = [pairs[index] for index in kept]
        return TrajectoryCollection(trajectories=[[one] for one in pairs], run_id=self.run_id)


def _identity(trajectory: Trajectory) -> str:
    return content_hash([item.model_dump(mode="json") for item in trajectory.episode])


def _write(path: Path, collection: TrajectoryCollection) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        item.model_dump_json()
        for group in collection.trajectories
        for trajectory in group
        for item in trajectory.episode
        if isinstance(item, DPOItem)
    ]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
