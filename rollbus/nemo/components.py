"""What the plugin adds to a configuration: a trajectory builder, a trainer adapter and a trainer on the bus, and a
telemetry exporter that records a workflow in production.

Their fields, defaults and meanings are those of the toolkit's OpenPipe ART plugin, and of the guide on extending.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import click
from nat.data_models.finetuning import TrainerAdapterConfig, TrainerConfig, TrajectoryBuilderConfig
from nat.data_models.telemetry_exporter import TelemetryExporterBaseConfig
from nat.llm.openai_llm import OpenAIModelConfig
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from rollbus.nemo.runs.folder import DATA_DIR
from rollbus.nemo.training_args import SETTING_BY_FIELD, refusals
from rollbus.producers.turns.redaction import Field as TextField
from rollbus.runtime.credentials import token_for

ART_TYPES = {
    "openpipe_art_traj_builder": "rollbus_traj_builder",
    "openpipe_art_trainer_adapter": "rollbus_trainer_adapter",
    "openpipe_art_trainer": "rollbus_trainer",
}
"""The guides' `_type`s, and what `rollbus finetune` reads them as."""
REFUSED_FIELDS = "refused_fields"
"""Type of an error whose context has `messages`, by field."""
NO_KEY = "default"
"""The toolkit's word for no key."""


def beside_configuration(path: Path) -> Path:
    """Return a relative path as one next to the configuration that the running command was given, if it was given one.

    The toolkit does not say where a configuration is from; its commands have the option that `rollbus finetune` has.
    """
    command = click.get_current_context(silent=True)
    configuration = None if command is None else command.params.get("config_file")
    return path if configuration is None else Path(configuration).resolve().parent / path


SettingsFile = Annotated[Path, AfterValidator(beside_configuration)]


class BusTrajectoryBuilderConfig(TrajectoryBuilderConfig, name="rollbus_traj_builder"):
    """Runs the dataset through the workflow; every attempt is an episode on the bus."""

    num_generations: int = Field(default=2, ge=1, description="Attempts at each example.")
    include_tool_calls: bool = Field(default=True, description="Whether trajectories contain tool calls.")
    min_episode_length: int = Field(default=2, ge=1, description="Fewest messages of a trajectory.")
    max_attempts: int = Field(default=3, ge=1, description="How often an attempt that crashes is made, at most.")
    failure_reward: float | None = Field(
        default=None, description="Reward of an attempt that crashed every time; left out without it."
    )


class LogTrajectoryBuilderConfig(TrajectoryBuilderConfig, name="rollbus_log_builder"):
    """Plays episodes of the log: production traffic is what trains."""

    source: Literal["log"] = "log"
    settings_file: SettingsFile | None = Field(
        default=None, description="Settings of the agents' log, as the exporter has them; relative to this file."
    )
    since: AwareDatetime | None = Field(default=None, description="Episodes that began at this time or later.")
    until: AwareDatetime | None = Field(default=None, description="Episodes that began before this time.")
    tasks: tuple[str, ...] = Field(default=(), description="Their tasks; all without it.")
    labels: dict[str, str] = Field(default={}, description="Labels that they have.")
    group_size: int = Field(default=8, ge=2, description="Most attempts at one example that are compared.")
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

    ip: str = Field(description="Address of the server.")
    port: int = Field(description="Port of its control routes.")
    name: str = Field(default="trainer_run", description="Name of the trained model, in requests too.")
    project: str = Field(default="trainer_project", description="Project it belongs to.")
    base_model: str = Field(default="Qwen/Qwen2.5-7B-Instruct", description="Model that training starts from.")
    api_key: str = Field(default="default", description="Bearer token; `default` is that of `rollbus up`.")
    delete_old_checkpoints: bool = Field(default=False, description="Delete checkpoints that are no longer needed.")
    init_args: ARTInitArgs | None = None
    engine_args: ARTEngineArgs | None = None
    server_config: dict[str, Any] | None = None

    @property
    def host(self) -> str:
        """Return the address as a URL has it: one of IP version 6 stands in brackets."""
        return f"[{self.ip}]" if ":" in self.ip and not self.ip.startswith("[") else self.ip

    @property
    def url(self) -> str:
        """Return the server's address."""
        return f"http://{self.host}:{self.port}"

    @property
    def health_url(self) -> str:
        """Return the route that says whether the server is there."""
        return f"{self.url}/health"

    @property
    def token(self) -> str | None:
        """Return the bearer token; without a key, that of this machine's stack for a server on this machine."""
        return self.api_key if self.api_key != NO_KEY else token_for(self.url)


class ARTTrainingConfig(BaseModel):
    """What one update does; a field of ART's `TrainerArgs` that is not used here is refused by name."""

    learning_rate: float = Field(default=5e-5, gt=0, description="Learning rate of GRPO updates.")
    beta: float = Field(default=0.0, ge=0, description="KL penalty coefficient.")
    max_grad_norm: float | None = Field(default=None, gt=0, description="Greatest norm of a gradient.")
    weight_decay: float | None = Field(default=None, ge=0, description="Of AdamW.")
    adam_beta1: float | None = Field(default=None, ge=0, lt=1, description="Of AdamW.")
    adam_beta2: float | None = Field(default=None, ge=0, lt=1, description="Of AdamW.")
    seed: int | None = Field(default=None, description="Of the update.")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unused(cls, values: Any) -> Any:
        fields = values if isinstance(values, Mapping) else {}
        if messages := refusals(str(name) for name, value in fields.items() if value is not None):
            text = "; ".join(f"{name} {message}" for name, message in messages.items())
            raise PydanticCustomError(REFUSED_FIELDS, "{text}", {"text": text, "messages": messages})
        return values

    @property
    def train_settings(self) -> dict[str, Any]:
        """Return what is given, by its names in `trainer: train:`."""
        return {ours: value for name, ours in SETTING_BY_FIELD.items() if (value := getattr(self, name)) is not None}


class BusTrainerAdapterConfig(TrainerAdapterConfig, name="rollbus_trainer_adapter"):
    """Trains on an ART server, through the log."""

    backend: ARTBackendConfig
    training: ARTTrainingConfig | None = None


class BusConfig(BaseModel):
    """What the toolkit does not have: where the log and the tables are, and settings of rollbus' own parts."""

    model_config = ConfigDict(extra="forbid")

    imports: tuple[str, ...] = ()
    """Modules that register components; searched next to the configuration file first."""
    run_id: str | None = Field(default=None, pattern=r"^[a-z0-9][a-z0-9-]*$")
    """Name of the run; drawn without it."""
    data_dir: Path = DATA_DIR
    """Folder of the local stack, and of what `--resume` needs."""
    settings_file: SettingsFile | None = None
    """Settings file with the services to use, relative to the configuration; without one they are started here."""
    groups_per_step: int | None = Field(default=None, ge=1)
    """Groups of one optimizer step; a whole epoch is one step without it."""
    seed: int = 0
    """Of the curriculum's random subsample."""
    settings: dict[str, Any] = {}
    """Laid over the settings that are made for the run, as in a settings file: `kafka`, `clickhouse`, `trainer`, …"""


class BusTrainerConfig(TrainerConfig, name="rollbus_trainer"):
    """Runs the epochs; everything it needs is under `finetuning`."""

    bus: BusConfig = BusConfig()
    """What only rollbus has; `rollbus finetune` reads the section `rollbus` in its place where there is one."""


class RecordedOpenAIConfig(OpenAIModelConfig, name="rollbus_openai"):
    """The toolkit's `openai`, whose answers a run finds again; it may have any name in any framework."""


class WorkflowTelemetryConfig(TelemetryExporterBaseConfig, name="rollbus"):
    """Records each request of the workflow as an episode on the bus."""

    model_config = ConfigDict(extra="forbid")

    settings_file: SettingsFile | None = Field(
        default=None,
        description="Settings with the Kafka to use, relative to this file; `rollbus.yaml` of the folder without it.",
    )
    bootstrap_servers: str | None = Field(default=None, description="Kafka's address, over that of the settings.")
    task: str | None = Field(default=None, description="Task of the episodes; the workflow's name without it.")
    producer: str = Field(default="nat", description="Name of this program in every event.")
    sample_rate: float = Field(default=1.0, ge=0, le=1, description="Share of requests that is recorded.")
    withhold: tuple[TextField, ...] = Field(default=(), description="Texts that never leave the process.")
    spool_folder: Path | None = Field(default=None, description="Where events wait while no broker takes them.")
