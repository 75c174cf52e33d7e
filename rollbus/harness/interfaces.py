"""The three interfaces that users implement: TrajectoryBuilder, TrainerAdapter and Trainer."""

import logging
from abc import ABC, abstractmethod
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rollbus.harness.episodes import TrainingJobRef, TrainingJobStatus, TrajectoryCollection
from rollbus.harness.evaluation_models import EvalOutputItem, EvaluationRunConfig, EvaluationRunOutput, worth_of
from rollbus.harness.finetune_config import CurriculumLearningConfig, FinetuneConfig, FinetuneRunConfig
from rollbus.harness.typed import TrainerAdapterConfig, TrainerConfig, TrajectoryBuilderConfig
from rollbus.schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbus.harness.builder import Builder

logger = logging.getLogger(__name__)


class TrajectoryBuilder(ABC):
    """Collects the trajectories of an epoch."""

    def __init__(self, trajectory_builder_config: TrajectoryBuilderConfig) -> None:
        self.trajectory_builder_config = trajectory_builder_config
        self.run_config: FinetuneConfig = None  # type: ignore[assignment]  # as the toolkit has it: set by initialize
        self.builder: Builder | None = None
        """The values of the YAML; the builder sets it."""

    async def initialize(self, run_config: FinetuneConfig) -> None:
        """Take in the run's configuration."""
        self.run_config = run_config
        self.trajectory_builder_config.reward = self.run_config.reward_function

    async def run_eval(self) -> EvaluationRunOutput:
        """Run the workflow on the dataset once, and every evaluator on what came of it."""
        from rollbus.harness.evaluation_run import EvaluationRun

        if self.builder is None:
            raise ConfigurationError("run_eval needs the configuration; build this through `rollbus finetune`")
        run: FinetuneRunConfig | None = self.run_config.run_configuration if self.run_config else None
        config = EvaluationRunConfig(config_file=self.builder.config)
        if run is not None:
            config = EvaluationRunConfig(
                config_file=run.config_file,
                dataset=run.dataset,
                result_json_path=run.result_json_path,
                endpoint=run.endpoint,
                endpoint_timeout=run.endpoint_timeout,
                override=run.override,
            )
        return await EvaluationRun(config, self.builder).run_and_evaluate()

    @abstractmethod
    async def start_run(self, run_id: str, meta: dict[str, Any] | None = None) -> None:
        """Start to collect trajectories."""
        raise NotImplementedError

    @abstractmethod
    async def finalize(self, run_id: str, meta: dict[str, Any] | None = None) -> TrajectoryCollection:
        """Return what was collected."""
        raise NotImplementedError

    async def compute_reward(self, output_item: EvalOutputItem, meta: dict[str, Any] | None = None) -> float:
        """Return the reward of an evaluated example; 0 without a score."""
        return float(output_item.score) if output_item.score is not None else 0.0

    @abstractmethod
    def log_progress(self, run_id: str, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        """Write down how collecting went."""
        raise NotImplementedError


class TrainerAdapter(ABC):
    """Hands trajectories to a training backend."""

    def __init__(self, adapter_config: TrainerAdapterConfig) -> None:
        self.adapter_config = adapter_config
        self.run_config: FinetuneConfig = None  # type: ignore[assignment]

    async def initialize(self, run_config: FinetuneConfig) -> None:
        """Take in the run's configuration."""
        self.run_config = run_config
        self.adapter_config.reward = self.run_config.reward_function

    @abstractmethod
    async def is_healthy(self) -> bool:
        """Say whether the backend would take a job now."""
        raise NotImplementedError

    @abstractmethod
    async def submit(self, trajectories: TrajectoryCollection) -> TrainingJobRef:
        """Hand trajectories over and return the job."""
        raise NotImplementedError

    @abstractmethod
    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Return the state of a job."""
        raise NotImplementedError

    @abstractmethod
    async def wait_until_complete(self, ref: TrainingJobRef, poll_interval: float = 10.0) -> TrainingJobStatus:
        """Return once a job has ended."""
        raise NotImplementedError

    @abstractmethod
    def log_progress(self, ref: TrainingJobRef, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        """Write down how training went."""
        raise NotImplementedError


class Trainer(ABC):
    """Runs the epochs."""

    def __init__(self, trainer_config: TrainerConfig, **kwargs: Any) -> None:
        self.trainer_config = trainer_config
        self.run_config: FinetuneConfig = None  # type: ignore[assignment]
        self.curriculum_config: CurriculumLearningConfig = None  # type: ignore[assignment]
        self.trajectory_builder: TrajectoryBuilder = None  # type: ignore[assignment]
        self.trainer_adapter: TrainerAdapter = None  # type: ignore[assignment]
        self._curriculum_state: dict[str, Any] = None  # type: ignore[assignment]

    async def bind_components(self, trajectory_builder: TrajectoryBuilder, trainer_adapter: TrainerAdapter) -> None:
        """Take in the other two."""
        self.trajectory_builder = trajectory_builder
        self.trainer_adapter = trainer_adapter

    async def initialize(self, run_config: FinetuneConfig) -> None:
        """Take in the run's configuration and initialize the other two."""
        self.run_config = run_config
        self.curriculum_config = run_config.curriculum_learning
        self._curriculum_state = {
            "current_percentile": self.curriculum_config.initial_percentile,
            "last_expansion_epoch": -1,
            "total_groups": 0,
            "included_groups": set(),
        }
        await self.trajectory_builder.initialize(run_config)
        await self.trainer_adapter.initialize(run_config)

    @abstractmethod
    async def run_epoch(self, epoch: int, run_id: str) -> TrainingJobRef | None:
        """Collect and submit one epoch; None where there was nothing to train on."""
        raise NotImplementedError

    @abstractmethod
    async def run(self, num_epochs: int) -> list[TrainingJobStatus]:
        """Run all epochs and return how each one's job ended."""
        raise NotImplementedError

    @abstractmethod
    async def get_metrics(self, run_id: str) -> dict[str, Any]:
        """Return what is known of a run."""
        raise NotImplementedError

    @abstractmethod
    async def cleanup(self) -> None:
        """Let go of everything."""
        raise NotImplementedError

    @abstractmethod
    def log_progress(self, epoch: int, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        """Write down how an epoch went."""
        raise NotImplementedError

    async def run_validation_evaluation(self, epoch: int, run_id: str) -> dict[str, Any]:
        """Evaluate on the validation dataset; a failure comes back as `error`, with no reward in place of one."""
        run = self.run_config.run_configuration
        assert run is not None
        validation = run.model_copy(
            update={
                "config_file": Path(run.validation_config_file) if run.validation_config_file else run.config_file,
                "dataset": run.validation_dataset,
            }
        )
        builder = self.trajectory_builder
        builder.run_config = self.run_config.model_copy(update={"run_configuration": validation})
        try:
            output = await builder.run_eval()
            assert self.run_config.reward_function is not None
            items = output.scores(self.run_config.reward_function.name) or {}
        except Exception as error:
            logger.exception("validation of epoch %d failed", epoch)
            return {"epoch": epoch, "avg_reward": None, "num_examples": 0, "error": str(error)}
        finally:
            builder.run_config = self.run_config
        rewards = [reward for item in items.values() if (reward := worth_of(item)) is not None]
        if not rewards:
            return {"epoch": epoch, "avg_reward": None, "num_examples": 0, "error": "no example has a score"}
        return {
            "epoch": epoch,
            "avg_reward": fmean(rewards),
            "min_reward": min(rewards),
            "max_reward": max(rewards),
            "num_examples": len(rewards),
            "rewards": rewards,
        }

    def apply_curriculum_learning(
        self, trajectory_collection: TrajectoryCollection, epoch: int
    ) -> TrajectoryCollection:
        """Return the groups to train on."""
        raise NotImplementedError("Override to implement curriculum learning")

    def get_curriculum_state(self) -> dict[str, Any]:
        """Return what the curriculum remembers, fit for JSON."""
        state = dict(self._curriculum_state)
        state["included_groups"] = sorted(state["included_groups"])
        state["config"] = self.curriculum_config.model_dump()
        return state
