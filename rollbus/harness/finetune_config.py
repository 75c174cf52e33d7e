"""The `finetuning` section of a configuration, and what the command line adds to it."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rollbus.harness.typed import RewardFunctionConfig

DEFAULT_OUTPUT_DIR = Path("./.tmp/nat/finetuning/")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CurriculumLearningConfig(_Strict):
    """Which groups of an epoch are trained on, and how that grows."""

    enabled: bool = Field(default=False, description="Whether groups are chosen at all.")
    initial_percentile: float = Field(default=0.3, gt=0.0, le=1.0, description="Share of groups at the start.")
    increment_percentile: float = Field(default=0.2, gt=0.0, le=1.0, description="What each expansion adds.")
    expansion_interval: int = Field(default=5, ge=1, description="Epochs between expansions.")
    min_reward_diff: float = Field(default=0.1, description="Groups whose rewards differ by less are left out.")
    sort_ascending: bool = Field(default=False, description="True begins with the lowest mean reward.")
    random_subsample: float | None = Field(
        default=None, gt=0.0, le=1.0, description="Share of the chosen groups that is kept, by chance."
    )
    seed: int = Field(default=0, description="Of that chance.")


class FinetuneRunConfig(_Strict):
    """What the command line says about one run."""

    config_file: Path | BaseModel = Field(description="The configuration, or the path of its file.")
    dataset: str | None = Field(default=None, description="Dataset in place of `eval.general.dataset`.")
    result_json_path: str = Field(default="$", description="Place of the answer in an endpoint's JSON.")
    endpoint: str | None = Field(default=None, description="Run the workflow at this URL.")
    endpoint_timeout: int = Field(default=300, description="Seconds an endpoint may take.")
    override: tuple[tuple[str, str], ...] = Field(default=(), description="Dotted key and value pairs.")
    validation_dataset: str | None = Field(default=None, description="Held-out examples.")
    validation_interval: int = Field(default=5, ge=1, description="Epochs between validations.")
    validation_config_file: str | None = Field(default=None, description="Another configuration to validate with.")

    @property
    def validates(self) -> bool:
        """Say whether there is something to validate on: a dataset, or a configuration that has one."""
        return self.validation_dataset is not None or self.validation_config_file is not None


class FinetuneConfig(_Strict):
    """One finetuning run."""

    enabled: bool = Field(default=False, description="Whether the section counts.")
    trainer: str | None = Field(default=None, description="Name of an entry under `trainers`.")
    trajectory_builder: str | None = Field(default=None, description="Name of an entry under `trajectory_builders`.")
    trainer_adapter: str | None = Field(default=None, description="Name of an entry under `trainer_adapters`.")
    reward_function: RewardFunctionConfig | None = Field(default=None, description="Which evaluator is the reward.")
    target_functions: list[str] = Field(
        default_factory=lambda: ["<workflow>"], description="Functions whose model calls are trained."
    )
    target_model: str | None = Field(default=None, description="Entry under `llms` (or model) that is trained.")
    curriculum_learning: CurriculumLearningConfig = Field(default_factory=CurriculumLearningConfig)
    num_epochs: int = Field(default=1, ge=1, description="Passes over the dataset.")
    output_dir: Path = Field(default=DEFAULT_OUTPUT_DIR, description="Where metrics and plots go.")
    run_configuration: FinetuneRunConfig | None = Field(default=None, description="Set by the command line.")

    @model_validator(mode="after")
    def _enabled_is_complete(self) -> "FinetuneConfig":
        if self.enabled:
            needed = ("trainer", "trajectory_builder", "trainer_adapter", "reward_function")
            missing = [name for name in needed if getattr(self, name) is None]
            if missing:
                raise ValueError(f"When fine-tuning is enabled, the following fields must be set: {', '.join(missing)}")
        return self
