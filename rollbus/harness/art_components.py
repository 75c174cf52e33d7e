"""The toolkit's names for OpenPipe ART, resolved to ours: builder, adapter and trainer of a run on the bus."""

from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rollbus.harness.builder import Builder
from rollbus.harness.registry import register_trainer, register_trainer_adapter, register_trajectory_builder
from rollbus.harness.typed import TrainerAdapterConfig, TrainerConfig, TrajectoryBuilderConfig


class ARTTrajectoryBuilderConfig(TrajectoryBuilderConfig, name="openpipe_art_traj_builder"):
    """Runs the dataset through the workflow."""

    num_generations: int = Field(default=2, ge=1, description="Attempts at each example.")
    include_tool_calls: bool = Field(default=True, description="Whether trajectories contain tool calls.")
    min_episode_length: int = Field(default=2, ge=1, description="Fewest messages of a trajectory.")


class ARTInitArgs(BaseModel):
    """How the model is loaded; other keys go to the server as they are."""

    model_config = ConfigDict(extra="allow")

    max_seq_length: int | None = Field(default=None, gt=0, description="Longest sequence.")


class ARTEngineArgs(BaseModel):
    """vLLM's arguments; other keys go to the server as they are."""

    model_config = ConfigDict(extra="allow")

    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1, description="Share of GPU memory.")
    tensor_parallel_size: int | None = Field(default=None, ge=1, description="GPUs for one model.")


class ARTBackendConfig(BaseModel):
    """Where the ART server is, and what it trains."""

    model_config = ConfigDict(extra="forbid")

    ip: str = Field(description="Address of the server.")
    port: int = Field(description="Port of its control routes.")
    name: str = Field(default="trainer_run", description="Name of the trained model, in requests too.")
    project: str = Field(default="trainer_project", description="Project it belongs to.")
    base_model: str = Field(default="Qwen/Qwen2.5-7B-Instruct", description="Model that training starts from.")
    api_key: str = Field(default="default", description="Bearer token; `default` sends none.")
    delete_old_checkpoints: bool = Field(default=False, description="Delete checkpoints that are no longer needed.")
    init_args: ARTInitArgs | None = None
    engine_args: ARTEngineArgs | None = None
    server_config: dict[str, Any] | None = None

    @property
    def url(self) -> str:
        """Return the server's address."""
        return f"http://{self.ip}:{self.port}"


class ARTTrainingConfig(BaseModel):
    """What one update does."""

    model_config = ConfigDict(extra="forbid")

    learning_rate: float = Field(default=5e-5, gt=0, description="Learning rate of GRPO updates.")
    beta: float = Field(default=0.0, ge=0, description="KL penalty coefficient.")


class ARTTrainerAdapterConfig(TrainerAdapterConfig, name="openpipe_art_trainer_adapter"):
    """Trains on an ART server, through the log."""

    backend: ARTBackendConfig
    training: ARTTrainingConfig | None = None


class ARTTrainerConfig(TrainerConfig, name="openpipe_art_trainer"):
    """Runs the epochs; everything it needs is under `finetuning`."""


@register_trajectory_builder(config_type=ARTTrajectoryBuilderConfig)
async def art_trajectory_builder(config: ARTTrajectoryBuilderConfig, builder: Builder) -> AsyncIterator[Any]:
    """Yield the built-in builder."""
    from rollbus.harness.art_trajectory_builder import ARTTrajectoryBuilder

    yield ARTTrajectoryBuilder(trajectory_builder_config=config)


@register_trainer_adapter(config_type=ARTTrainerAdapterConfig)
async def art_trainer_adapter(config: ARTTrainerAdapterConfig, builder: Builder) -> AsyncIterator[Any]:
    """Yield the adapter to ART."""
    from rollbus.harness.art_trainer_adapter import ARTTrainerAdapter

    yield ARTTrainerAdapter(adapter_config=config)


@register_trainer(config_type=ARTTrainerConfig)
async def art_trainer(config: ARTTrainerConfig, builder: Builder) -> AsyncIterator[Any]:
    """Yield the trainer."""
    from rollbus.harness.art_trainer import ARTTrainer

    yield ARTTrainer(trainer_config=config)
