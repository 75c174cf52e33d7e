"""Settings of the model service, without any library that runs it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, SecretStr, model_validator

from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.trainer.backends.tinker.settings import TinkerAccess
from rollbus.trainer.train_config import FrozenSettings

if TYPE_CHECKING:
    from rollbus.runtime.http.guard import FindPrincipal

Precision = Literal["float32", "bfloat16"]
"""Of the layers. Embeddings, norms, logits and the optimizer's copies are always float32."""

LogprobsMode = Literal["raw", "processed"]

PROJECT = "rollbus"
"""ART's project of every model: a folder in that of the settings."""
LEAST_TEMPERATURE = 0.01
"""Below it the most probable token is taken: floats cannot separate logits divided by less. (vLLM samples at 0.01
instead.) Such turns cannot be trained."""


class LoraConfig(FrozenSettings):
    """Train low-rank adapters on frozen weights, in PEFT's terms."""

    rank: int = Field(default=8, ge=1)
    alpha: float = Field(default=16.0, gt=0)
    """The adapter's product is multiplied by alpha / rank."""


class ArtEngine(FrozenSettings):
    """ART's own model service: Unsloth trains adapters, a vLLM that ART starts serves them. It needs a GPU.

    None leaves ART's default.
    """

    quantisation: Literal["4bit", "8bit", "none"] = "4bit"
    """Of the frozen weights while training."""
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    """vLLM's share of a GPU."""
    tensor_parallel_size: int | None = Field(default=None, ge=1)
    """GPUs that one vLLM is split over."""
    gradient_accumulation: int = Field(default=1, ge=1)
    """Rows per optimizer step. With fewer than a batch has, its later rows are trained by weights that have moved."""
    packing: bool = False
    """Several sequences in one row, kept apart by their mask."""
    trainer_gpus: tuple[int, ...] = ()
    inference_gpus: tuple[int, ...] = ()
    """Both empty: one GPU for both in turn, vLLM asleep while training."""
    vllm_url: str | None = None
    """Your own vLLM instead of the one that ART starts."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Which checkpoints stay."""

    keep_newest: int | None = None
    """None keeps every checkpoint."""
    keep_every: int | None = None
    """Versions whose number is a multiple of it stay for good."""


class ModelOptions(FrozenSettings):
    """How one model is served and trained."""

    max_tokens: int | None = Field(default=None, gt=0)
    """Longest sequence; without it what the base model or the service takes, and with our model service at most
    4096."""
    max_rows: int = Field(default=64, ge=1)
    """Completions generated at once."""
    keep_versions: int = Field(default=6, ge=1)
    """Newest versions held in memory; older ones are read again when asked for."""
    logprobs_mode: LogprobsMode = "raw"
    """What the endpoint reports: log-probs of the model itself, or of the distribution at the request's temperature.
    At a temperature other than 1 only `processed` ones can be trained."""
    device: str = "cpu"
    precision: Precision | Literal["auto"] = "float32"
    """`auto` takes bfloat16 where the device multiplies in it, and float32 where it does not."""
    lora: LoraConfig | None = None
    """None trains all parameters."""
    art: ArtEngine | None = None
    """None takes our model service; otherwise ART's own."""
    keep_checkpoints: int | None = Field(default=20, ge=1)
    """Newest checkpoints kept on disk; null keeps all. What is served, was served before, is a canary or is trained on
    always stays."""
    keep_every: int | None = Field(default=50, ge=1)
    """Checkpoints whose version is a multiple of it are kept for good; null keeps none for that."""

    @property
    def retention(self) -> Retention:
        """Which checkpoints stay."""
        return Retention(self.keep_checkpoints, self.keep_every)


class ArtServerSettings(ModelOptions):
    """The ART server and its model service."""

    model: str = "agent"
    """Name that requests and batches use; answers name `name@version`."""
    base_model: Path | None = None
    """Directory in Hugging Face layout; without it, SmolLM2, which is fetched once."""
    directory: Path | None = None
    """Checkpoints and journal; `art` in the stack's data folder without it."""
    token: SecretStr | None = Field(default=None, min_length=1)
    """Bearer token of both ports; None asks for none."""
    host: str = "127.0.0.1"
    tinker: TinkerAccess | None = None
    """Train and sample at a service with the Tinker API; `base_model` is then the folder of its tokenizer."""

    @model_validator(mode="after")
    def _holds_the_weights_in_one_place(self) -> "ArtServerSettings":
        if self.tinker is None:
            return self
        options = {"art": self.art, "lora": self.lora, "logprobs_mode: processed": self.logprobs_mode == "processed"}
        if wrong := [name for name, value in options.items() if value]:
            raise ValueError(
                f"{', '.join(wrong)} is of a model on this machine, and `tinker` holds it elsewhere; leave one out "
                "(`tinker: lora_rank:` is the rank there, and its log-probs are raw)"
            )
        if self.base_model is None:
            raise ValueError("`tinker` needs `base_model`: the folder with the tokenizer of the model at the service")
        return self


@dataclass(frozen=True, slots=True)
class DecisionLog:
    """Where it is decided which version has which share of the episodes."""

    kafka: KafkaConnection
    namespace: str


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """One model: its base, the folder of its versions, and its address."""

    model: str
    """Name that requests and batches use."""
    base_model: Path
    """Directory of the base model in Hugging Face layout."""
    directory: Path
    """Holds a folder for each model, with its checkpoints and its journal."""
    host: str = "127.0.0.1"
    port: int = 0
    """Of the OpenAI-compatible endpoint; 0 takes a free one."""
    api_key: str | None = None
    """Bearer token of every port; None asks for none."""
    find_principal: "FindPrincipal | None" = None
    """Knows the tokens of principals, which open the model's port alone."""
    insecure: bool = False
    """Whether the ports may be open without a token."""
    retention: Retention = field(default_factory=Retention)
    decisions: DecisionLog | None = None
    """None gives no version a share: the serving one answers."""
    options: ModelOptions = field(default_factory=ModelOptions)
    tinker: TinkerAccess | None = None
    """The service that holds the weights; `base_model` is then the folder of the tokenizer."""

    @property
    def tinker_directory(self) -> Path:
        """The journal of the model's versions at a service with the Tinker API."""
        return self.directory / "tinker" / self.model

    @property
    def model_directory(self) -> Path:
        """The model's folder, where ART has it too."""
        return self.directory / PROJECT / "models" / self.model
