"""A worked adapter for another trainer: rejection sampling, where each epoch's best answers become a file to train on.

Everything that a TrainerAdapter must do is here: take a collection, hand it to a backend, say how the job stands. The
backend is a folder: it writes one JSONL file of chat messages an epoch, which TRL's SFTTrainer reads as it is. Put a
request to your trainer where `_write` stands.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from nat.builder.builder import Builder
from nat.builder.evaluator import EvaluatorInfo
from nat.cli.register_workflow import register_evaluator, register_trainer_adapter
from nat.data_models.evaluator import EvalInputItem, EvaluatorBaseConfig
from nat.data_models.finetuning import (
    EpisodeItem,
    TrainerAdapterConfig,
    TrainingJobRef,
    TrainingJobStatus,
    TrainingStatusEnum,
    Trajectory,
    TrajectoryCollection,
)
from nat.finetuning.interfaces.trainer_adapter import TrainerAdapter
from nat.plugins.eval.data_models.evaluator_io import EvalOutputItem
from nat.plugins.eval.evaluator.base_evaluator import BaseEvaluator
from pydantic import BaseModel, ConfigDict, Field


class FolderBackend(BaseModel):
    """Where the files go."""

    model_config = ConfigDict(extra="forbid")

    folder: Path
    keep_share: float = Field(default=0.25, gt=0, le=1, description="Share of each example's attempts that is kept.")


class BestOfAdapterConfig(TrainerAdapterConfig, name="best_of_adapter"):
    """Chosen in YAML as `_type: best_of_adapter`."""

    backend: FolderBackend


class BestOfAdapter(TrainerAdapter):
    """Writes the best attempts down."""

    def __init__(self, adapter_config: BestOfAdapterConfig) -> None:
        super().__init__(adapter_config)
        self.config = adapter_config
        self._jobs: dict[str, asyncio.Task[int]] = {}

    async def is_healthy(self) -> bool:
        """Say whether the folder can be written."""
        self.config.backend.folder.mkdir(parents=True, exist_ok=True)
        return True

    async def submit(self, trajectories: TrajectoryCollection) -> TrainingJobRef:
        """Start the job of an epoch; a job runs next to the toolkit, as a trainer elsewhere would.

        It is named by its epoch, so that a job which a kill cut short is written again in its own place.
        """
        job = f"epoch-{(trajectories.trajectories[0][0].metadata or {}).get('epoch', 0)}"
        self._jobs[job] = asyncio.create_task(asyncio.to_thread(self._write, job, trajectories))
        return TrainingJobRef(run_id=trajectories.run_id, backend="folder", metadata={"job": job})

    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Return how a job stands; asking again after its end gives the same answer."""
        task = self._jobs[str((ref.metadata or {})["job"])]
        shared: dict[str, Any] = {"run_id": ref.run_id, "backend": ref.backend}
        if not task.done():
            return TrainingJobStatus(status=TrainingStatusEnum.RUNNING, **shared)
        if error := task.exception():
            return TrainingJobStatus(status=TrainingStatusEnum.FAILED, message=str(error), **shared)
        message = f"{task.result()} conversations written"
        return TrainingJobStatus(status=TrainingStatusEnum.COMPLETED, progress=100.0, message=message, **shared)

    async def wait_until_complete(self, ref: TrainingJobRef, poll_interval: float = 10.0) -> TrainingJobStatus:
        """Wait for a job."""
        await asyncio.wait([self._jobs[str((ref.metadata or {})["job"])]])
        return await self.status(ref)

    def log_progress(self, ref: TrainingJobRef, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        """Nothing in addition to what the trainer writes."""

    def _write(self, job: str, trajectories: TrajectoryCollection) -> int:
        self.config.backend.folder.mkdir(parents=True, exist_ok=True)
        rows = [json.dumps({"messages": list(_messages(trajectory))}) for trajectory in self._best(trajectories)]
        (self.config.backend.folder / f"{job}.jsonl").write_text("".join(row + "\n" for row in rows), encoding="utf-8")
        return len(rows)

    def _best(self, trajectories: TrajectoryCollection) -> Iterator[Trajectory]:
        for group in trajectories.trajectories:
            ranked = sorted(group, key=lambda trajectory: -trajectory.reward)
            yield from ranked[: max(1, round(len(ranked) * self.config.backend.keep_share))]


def _messages(trajectory: Trajectory) -> Iterator[dict[str, str]]:
    for item in trajectory.episode:
        assert isinstance(item, EpisodeItem)
        yield {"role": item.role.value, "content": item.content}


@register_trainer_adapter(config_type=BestOfAdapterConfig)
async def best_of_adapter(config: BestOfAdapterConfig, builder: Builder) -> AsyncIterator[BestOfAdapter]:
    """Yield the adapter."""
    yield BestOfAdapter(adapter_config=config)


class RightConfig(EvaluatorBaseConfig, name="best_of_right"):
    """Chosen in YAML as `_type: best_of_right`."""


class Right(BaseEvaluator):
    """Compares an answer with the right one."""

    async def evaluate_item(self, item: EvalInputItem) -> EvalOutputItem:
        """Return 1 for the right answer."""
        right = str(item.output_obj).strip() == str(item.expected_output_obj)
        return EvalOutputItem(id=item.id, score=float(right), reasoning=f"right={right}")


@register_evaluator(config_type=RightConfig)
async def best_of_right(config: RightConfig, builder: Any) -> AsyncIterator[EvaluatorInfo]:
    """Yield the evaluator."""
    yield EvaluatorInfo(config=config, evaluate_fn=Right().evaluate, description="Whether an answer is right.")
