"""What a run is to do: the toolkit's configuration and ours, and what follows from the two."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nat.data_models.config import Config
from nat.data_models.finetuning import TrainerAdapterConfig, TrajectoryBuilderConfig

from rollbus.nemo.components import (
    ARTBackendConfig,
    BusConfig,
    BusTrainerAdapterConfig,
    BusTrainerConfig,
    BusTrajectoryBuilderConfig,
    LogTrajectoryBuilderConfig,
)
from rollbus.schemas.errors import ConfigurationError

OWN_BUILDER = BusTrajectoryBuilderConfig(min_episode_length=1)
"""What is asked of the trajectories that a user's own builder makes: what it has left in is long enough."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to do."""

    config: Config
    bus: BusConfig

    @property
    def adapter(self) -> TrainerAdapterConfig:
        """The chosen adapter's configuration."""
        return self.config.trainer_adapters[self.config.finetuning.trainer_adapter or ""]

    @property
    def builder(self) -> TrajectoryBuilderConfig:
        """The chosen trajectory builder's configuration."""
        return self.config.trajectory_builders[self.config.finetuning.trajectory_builder or ""]

    @property
    def attempts(self) -> BusTrajectoryBuilderConfig:
        """How attempts are made and kept; the fields of a user's own builder are its own, and ask nothing of stages."""
        if isinstance(self.builder, LogTrajectoryBuilderConfig):
            names = {"include_tool_calls", "min_episode_length"}
            return BusTrajectoryBuilderConfig(
                num_generations=self.builder.group_size, **self.builder.model_dump(include=names)
            )
        return self.builder if isinstance(self.builder, BusTrajectoryBuilderConfig) else OWN_BUILDER

    @property
    def is_from_log(self) -> bool:
        """Whether the episodes are production traffic, and not attempts at a dataset."""
        return isinstance(self.builder, LogTrajectoryBuilderConfig)

    @property
    def backend(self) -> ARTBackendConfig | None:
        """What is trained, and where; None where an adapter of the user's own trains."""
        return self.adapter.backend if isinstance(self.adapter, BusTrainerAdapterConfig) else None

    @property
    def model(self) -> str:
        """The name of the trained model."""
        return "agent" if self.backend is None else self.backend.name

    @property
    def trained(self) -> tuple[str, str] | None:
        """The base model's name and the trained one's; None where the model is trained elsewhere."""
        return None if self.backend is None else (self.backend.base_model, self.backend.name)

    @property
    def art_backend(self) -> ARTBackendConfig | None:
        """The ART server that trains; None where the model is trained elsewhere, or in memory."""
        setting: Any = self.bus.settings
        for key in ("trainer", "backend", "type"):
            setting = setting.get(key) if isinstance(setting, Mapping) else None
        return self.backend if setting in (None, "art-server") else None

    @property
    def curriculum_on_bus(self) -> bool:
        """Whether the run's curriculum is the stage on the bus; a user's own trainer chooses in process."""
        return type(self.config.trainers[self.config.finetuning.trainer or ""]) is BusTrainerConfig

    @property
    def reward(self) -> str:
        """The name of the evaluator whose score is the reward."""
        reward = self.config.finetuning.reward_function
        if reward is None:
            raise ConfigurationError("finetuning.reward_function is not set; name an entry of eval.evaluators")
        return reward.name
