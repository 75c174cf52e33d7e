"""The sections of a configuration file, and the one object that they become.

`llms`, `functions` and the like are tables of name → entry; an entry's `_type` says which registered class it is.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny

from rollbus.harness.finetune_config import FinetuneConfig
from rollbus.harness.registry import Kind
from rollbus.harness.typed import (
    EvaluatorConfig,
    FunctionConfig,
    LLMConfig,
    TrainerAdapterConfig,
    TrainerConfig,
    TrajectoryBuilderConfig,
)

DatasetType = Literal["json", "jsonl", "csv", "parquet"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class DatasetStructure(_Strict):
    """Which keys of an example hold what."""

    question_key: str = "question"
    answer_key: str = "answer"
    disable: bool = False
    """True hands the whole example to the workflow."""


class DatasetConfig(_Strict):
    """A file of examples."""

    type: DatasetType | None = Field(default=None, alias="_type")
    """By the file's ending without it."""
    file_path: Path
    id_key: str = "id"
    structure: DatasetStructure = DatasetStructure()


class EvalGeneralConfig(_Strict):
    """How the dataset is run."""

    max_concurrency: int = Field(default=8, ge=1)
    """Examples at a time."""
    output_dir: Path = Path("./.tmp/nat/examples/default/")
    dataset: DatasetConfig | None = None


class EvalConfig(_Strict):
    """The dataset, and what scores it."""

    general: EvalGeneralConfig = EvalGeneralConfig()
    evaluators: dict[str, SerializeAsAny[EvaluatorConfig]] = {}


class BusConfig(_Strict):
    """What the toolkit does not have: where the log and the tables are, and settings of rollbus' own parts."""

    imports: tuple[str, ...] = ()
    """Modules that register components; searched next to the configuration file first."""
    run_id: str | None = Field(default=None, pattern=r"^[a-z0-9][a-z0-9-]*$")
    """Name of the run; drawn without it."""
    data_dir: Path = Path(".rollbus/finetune")
    """Folder of the local stack, and of what `--resume` needs."""
    groups_per_step: int | None = Field(default=None, ge=1)
    """Groups of one optimizer step; a whole epoch is one step without it."""
    settings: dict[str, Any] = {}
    """Laid over the settings that are made for the run, as in a settings file: `kafka`, `clickhouse`, `trainer`, …"""


class Configuration(_Strict):
    """A whole configuration."""

    llms: dict[str, SerializeAsAny[LLMConfig]] = {}
    functions: dict[str, SerializeAsAny[FunctionConfig]] = {}
    workflow: SerializeAsAny[FunctionConfig] | None = None
    eval: EvalConfig = EvalConfig()
    trajectory_builders: dict[str, SerializeAsAny[TrajectoryBuilderConfig]] = {}
    trainer_adapters: dict[str, SerializeAsAny[TrainerAdapterConfig]] = {}
    trainers: dict[str, SerializeAsAny[TrainerConfig]] = {}
    finetuning: FinetuneConfig = FinetuneConfig()
    rollbus: BusConfig = BusConfig()


TABLES: dict[tuple[str, ...], Kind] = {
    ("llms",): "llm",
    ("functions",): "function",
    ("eval", "evaluators"): "evaluator",
    ("trajectory_builders",): "trajectory_builder",
    ("trainer_adapters",): "trainer_adapter",
    ("trainers",): "trainer",
}
"""Sections with entries that have a `_type`, and their kind; `workflow` is a single entry."""
