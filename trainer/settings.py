"""The trainer's settings, parsed once at the edge: which run of which model, on which log, with which backend."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from rollbus.schemas.kafka_connection import KafkaConnection
from rollbus.schemas.topics import DEFAULT_NAMESPACE
from rollbus.trainer.alarm import AlarmLimits
from rollbus.trainer.backends.model_settings import ArtEngine, LoraConfig, ModelOptions
from rollbus.trainer.backends.protocol import TrainConfig
from rollbus.trainer.promotion import PromotionRule
from rollbus.trainer.step_context import LoopSettings


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ArtServerBackend(_Settings):
    """`rollbus art-server`, here or elsewhere."""

    type: Literal["art-server"] = "art-server"
    url: str = "http://127.0.0.1:7623"
    token: SecretStr | None = None


class LoraSettings(_Settings):
    """Low-rank adapters beside frozen weights; the same fields and defaults as `model_settings.LoraConfig`."""

    rank: int = Field(default=8, ge=1)
    alpha: float = Field(default=16.0, gt=0)
    attention_only: bool = False


class ArtEngineSettings(_Settings):
    """ART's own model service; the same fields and defaults as `model_settings.ArtEngine`."""

    quantisation: Literal["4bit", "8bit", "none"] = "4bit"
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    tensor_parallel_size: int | None = Field(default=None, ge=1)
    gradient_accumulation: int = Field(default=1, ge=1)
    packing: bool = False
    trainer_gpus: tuple[int, ...] = ()
    inference_gpus: tuple[int, ...] = ()
    vllm_url: str | None = None


class ModelSettings(_Settings):
    """How one model is served and trained; the same fields and defaults as `model_settings.ModelOptions`."""

    max_tokens: int | None = Field(default=None, gt=0)
    """Longest sequence; the base model's own without it."""
    max_rows: int = Field(default=64, ge=1)
    """Completions generated at once."""
    keep_versions: int = Field(default=6, ge=1)
    """Newest versions held in memory; older ones are read again when asked for."""
    logprobs_mode: Literal["raw", "processed"] = "raw"
    """What the endpoint reports at a temperature other than 1; only `processed` ones can be trained there."""
    sampler_threads: int = Field(default=1, ge=1)
    trainer_threads: int = Field(default=1, ge=1)
    device: str = "cpu"
    precision: Literal["float32", "bfloat16"] = "float32"
    lora: LoraSettings | None = None
    """Without it all parameters are trained."""
    art: ArtEngineSettings | None = None
    """ART's own service in the place of ours, on GPUs."""

    def options(self) -> ModelOptions:
        """Return what the model service takes."""
        values = {name: getattr(self, name) for name in ModelSettings.model_fields}
        values["lora"] = LoraConfig(**self.lora.model_dump()) if self.lora else None
        values["art"] = ArtEngine(**self.art.model_dump()) if self.art else None
        return ModelOptions(**values)


class ArtLocalBackend(ModelSettings):
    """ART in the trainer's own process: for one machine with one GPU."""

    type: Literal["art-local"]
    base_model: Path
    """Directory in Hugging Face layout."""
    directory: Path
    """Checkpoints and journal."""
    model_host: str = "127.0.0.1"
    model_port: int = 8000


class ReleasedArtBackend(_Settings):
    """A released ART server (`art run` of 0.5.7): it renders chats and computes advantages itself."""

    type: Literal["art-released"]
    url: str = "http://127.0.0.1:7999"
    base_model: str
    """As the server knows it."""
    tokenizer: Path
    """Directory of the same model's config and tokenizer, here: what it would not render exactly is dropped."""
    folder: Path
    """Where the journal stands that the server does not keep."""
    project: str = "rollbus"
    max_tokens: int | None = Field(default=None, gt=0)


class MemoryBackendSettings(_Settings):
    """No model at all: to try a pipeline."""

    type: Literal["memory"]
    folder: Path | None = None
    """Where its journal stands; None forgets everything at the end."""
    step_s: float = Field(default=0.0, ge=0)
    """How long a step pretends to take."""


BackendSettings = Annotated[
    ArtServerBackend | ArtLocalBackend | ReleasedArtBackend | MemoryBackendSettings, Field(discriminator="type")
]


class TrainSettings(_Settings):
    """What one GRPO update does; the same fields and defaults as `backends.protocol.TrainConfig`."""

    learning_rate: float = Field(default=1e-5, gt=0)
    loss: Literal["cispo", "ppo", "dppo"] = "cispo"
    advantages: Literal["given", "art"] = "given"
    ratio_min: float = Field(default=0.0, ge=0)
    ratio_max: float = Field(default=5.0, gt=0)
    epsilon: float = Field(default=0.2, gt=0, le=1)
    epsilon_high: float = Field(default=0.28, gt=0)
    dual_clip: float | None = Field(default=3.0, gt=1)
    probability_delta: float = Field(default=0.2, gt=0, le=1)
    ratio_level: Literal["token", "sequence"] = "token"
    importance_correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = (
        "none"
    )
    importance_cap: float = Field(default=2.0, gt=0)
    kl_coefficient: float = Field(default=0.0, ge=0)
    kl_estimator: Literal["k1", "k3"] = "k1"
    kl_reference_version: int = Field(default=0, ge=0)
    behaviour_kl_coefficient: float = Field(default=0.0, ge=0)
    aggregation: Literal["token_mean", "trajectory_mean", "prompt_mean", "constant"] = "token_mean"
    aggregation_tokens: int | None = Field(default=None, gt=0)
    off_policy_mask_threshold: float | None = None
    entropy_bonus: float = 0.0
    max_grad_norm: float = Field(default=1.0, gt=0)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.99, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    seed: int = 0

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> "TrainSettings":
        if self.aggregation == "constant" and self.aggregation_tokens is None:
            raise ValueError("aggregation `constant` needs aggregation_tokens, the tokens that a sequence counts as")
        if self.advantages == "art" and self.aggregation not in ("token_mean", "trajectory_mean"):
            raise ValueError(
                f"with advantages `art` ART weighs every trajectory alike; `given` goes with {self.aggregation}"
            )
        if self.ratio_min > self.ratio_max:
            raise ValueError(f"ratio_min {self.ratio_min:g} lies above ratio_max {self.ratio_max:g}")
        return self

    def train_config(self) -> TrainConfig:
        """Return them as the backends take them."""
        return TrainConfig(**self.model_dump())


class AlarmSettings(_Settings):
    """What pauses the run; the same fields and defaults as `alarm.AlarmLimits`. A limit of null is not watched."""

    window_steps: int = Field(default=5, ge=1)
    mismatch_kl: float | None = Field(default=1.0, gt=0)
    clip_fraction: float | None = Field(default=0.5, gt=0, le=1)
    effective_sample_size: float | None = Field(default=0.1, gt=0, le=1)
    grad_norm: float | None = Field(default=None, gt=0)
    entropy: float | None = Field(default=None, gt=0)
    no_signal_share: float | None = Field(default=0.9, gt=0, le=1)


class PromotionSettings(_Settings):
    """Which candidates are served without an operator; the same fields as `promotion.PromotionRule`."""

    evaluation: str
    metric: str
    margin: float = 0.0
    certain: bool = False


class ValidationSettings(_Settings):
    """Held-out tasks that versions are measured on; see `validation`, `playing` and `evaluation_agents`."""

    name: str = "held-out"
    agent: str
    """What plays an episode: an entry point of `rollbus.evaluation_agents`, or `module:function`."""
    dataset: Path | None = None
    """JSON lines, or one JSON list: an object per example, with an `id` if it has one."""
    episodes: int | None = Field(default=None, ge=1)
    """Examples in turn; without it, each example once."""
    seed: int = 0
    interval_steps: int = Field(default=5, ge=1)
    wait: bool = False
    """True: training waits for each evaluation."""
    concurrency: int = Field(default=16, ge=1)
    timeout_s: float = Field(default=120.0, gt=0)
    tries: int = Field(default=3, ge=1)
    base_url: str | None = None
    """Where the model is asked, ending in /v1; the backend's own endpoint without it."""
    api_key: SecretStr | None = None
    """The backend's token without it."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Handed to the agent as they are."""

    @model_validator(mode="after")
    def _something_to_play(self) -> "ValidationSettings":
        if self.dataset is None and self.episodes is None:
            raise ValueError("validation needs a dataset, or the number of episodes that the agent makes up itself")
        return self


class TrainerSettings(_Settings):
    """One trainer process."""

    kafka: KafkaConnection = KafkaConnection()
    namespace: str = DEFAULT_NAMESPACE
    from_namespace: str | None = None
    """Take the batches of a replay there, and end with the last; everything is recorded in `namespace` all the same."""
    run_id: str = Field(default="main", pattern=r"^[a-z0-9][a-z0-9-]*$")
    model: str = "agent"
    backend: BackendSettings = ArtServerBackend()
    train: TrainSettings = TrainSettings()
    max_off_policy_steps: int = Field(default=4, ge=0)
    serve: Literal["at_once", "after_evaluation"] = "at_once"
    """`after_evaluation` announces a candidate; an operator promotes it, or `promote_if` does."""
    promote_if: PromotionSettings | None = None
    validation: ValidationSettings | None = None
    """Measure versions beside training; None leaves that to others."""
    on_rejected: Literal["stop", "skip"] = "stop"
    """What becomes of a batch that the backend refuses for good."""
    retry_pauses_s: tuple[Annotated[float, Field(ge=0)], ...] = (2.0, 15.0, 60.0)
    max_skipped_in_a_row: int = Field(default=10, ge=1)
    alarm: AlarmSettings | None = AlarmSettings()
    """Pause the run where training runs away; null never does."""
    poll_interval_s: float = Field(default=0.5, gt=0)

    def loop_settings(self) -> LoopSettings:
        """Return what the loop takes."""
        return LoopSettings(
            run_id=self.run_id,
            model=self.model,
            train=self.train.train_config(),
            max_off_policy_steps=self.max_off_policy_steps,
            serve_at_once=self.serve == "at_once",
            retry_pauses_s=self.retry_pauses_s,
            skip_rejected=self.on_rejected == "skip",
            max_skipped_in_a_row=self.max_skipped_in_a_row,
            promote_if=PromotionRule(**self.promote_if.model_dump()) if self.promote_if else None,
            alarm=AlarmLimits(**self.alarm.model_dump()) if self.alarm else None,
            poll_interval_s=self.poll_interval_s,
            finish_on_stop=self.backend.type != "art-server",
        )
