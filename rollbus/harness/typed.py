"""Configuration classes with a name: `class Mine(TrajectoryBuilderConfig, name="mine")` is `_type: mine` in YAML."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field


class RewardFunctionConfig(BaseModel):
    """Which evaluator's score is the reward."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(description="Name of an evaluator under `eval.evaluators`.")


class TypedConfig(BaseModel):
    """Base of everything that YAML chooses by `_type`."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    type: str = Field(default="unknown", alias="_type", description="Name of the registered component.")

    _type_name: ClassVar[str | None] = None

    def __init_subclass__(cls, name: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)

    @classmethod
    def __pydantic_init_subclass__(cls, name: str | None = None, **kwargs: Any) -> None:
        """Remember the class's own name; a subclass without one is not chosen from YAML."""
        super().__pydantic_init_subclass__(**kwargs)
        cls._type_name = name
        if name is not None:
            cls.model_fields["type"].default = name
            cls.model_rebuild(force=True)

    @classmethod
    def static_type(cls) -> str | None:
        """Return the name by which YAML chooses this class."""
        return cls._type_name


class LLMConfig(TypedConfig):
    """Base of the entries under `llms`."""


class FunctionConfig(TypedConfig):
    """Base of the entries under `functions`, and of `workflow`."""


class EvaluatorConfig(TypedConfig):
    """Base of the entries under `eval.evaluators`."""


class TrainerConfig(TypedConfig):
    """Base of the entries under `trainers`."""

    reward: RewardFunctionConfig | None = Field(default=None, description="Filled in from `finetuning`.")


class TrajectoryBuilderConfig(TypedConfig):
    """Base of the entries under `trajectory_builders`."""

    reward: RewardFunctionConfig | None = Field(default=None, description="Filled in from `finetuning`.")


class TrainerAdapterConfig(TypedConfig):
    """Base of the entries under `trainer_adapters`."""

    reward: RewardFunctionConfig | None = Field(default=None, description="Filled in from `finetuning`.")
