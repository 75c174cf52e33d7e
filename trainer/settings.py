"""The trainer's settings, parsed once at the edge: which run of which model, on which log, with which backend."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from rollbus.runtime.health.alarms.divergence import WINDOW_STEPS, CollapseLimits
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.namespaces import DEFAULT_NAMESPACE
from rollbus.trainer.backends.model_settings import ArtServerSettings
from rollbus.trainer.backends.serverless.settings import ServerlessAccess
from rollbus.trainer.train_config import FrozenSettings, TrainConfig
from rollbus.trainer.validation.promotion import PromotionRule
from rollbus.trainer.validation.settings import ValidationSettings


class ArtServerBackend(FrozenSettings):
    """`rollbus art-server`, here or elsewhere."""

    type: Literal["art-server"] = "art-server"
    url: str = "http://127.0.0.1:7623"
    token: SecretStr | None = None
    token_file: Path | None = None
    """Holds the token, where none is given."""


class ArtLocalBackend(FrozenSettings):
    """The model of the section `art_server` in the trainer's own process: for one machine with one GPU."""

    type: Literal["art-local"]


class TinkerBackendSettings(FrozenSettings):
    """The service of `art_server: tinker:`, driven by the trainer; it serves no agents, as an art-server does."""

    type: Literal["tinker"]


class ServerlessBackendSettings(ServerlessAccess):
    """W&B's serverless training, through ART's own client; it serves no agents.

    Folder, longest sequence and versions to keep are those of the section `art_server`.
    """

    type: Literal["art-serverless"]
    accept_step: int | None = Field(default=None, ge=0)
    """Go on from this step of the service, although it is not the one that the journal has."""


class MemoryBackendSettings(FrozenSettings):
    """Trains no model: to try a pipeline."""

    type: Literal["memory"]
    folder: Path | None = None
    """Folder of its journal; None forgets everything at the end."""
    step_s: float = Field(default=0.0, ge=0)
    """How long a step pretends to take."""


BackendSettings = Annotated[
    ArtServerBackend | ArtLocalBackend | TinkerBackendSettings | ServerlessBackendSettings | MemoryBackendSettings,
    Field(discriminator="type"),
]


class TrainerSection(FrozenSettings):
    """The trainers: where they train, how, and what they serve."""

    backend: BackendSettings = ArtServerBackend()
    train: TrainConfig = TrainConfig()
    most_difference: float = Field(default=0.1, ge=0)
    """Refuse a batch where a producer's log-probs differ by more from the model's own, in nats a token; 0 never does.
    bfloat16 and other kernels differ by about 0.01, a temperature of 0.5 that nobody stated by 0.3 and more;
    0.25 / √tokens is added for rounding."""
    serve: Literal["at_once", "after_evaluation"] = "at_once"
    """`after_evaluation` announces a candidate; an operator promotes it, or `promote_if` does."""
    promote_if: PromotionRule | None = None
    """None serves a candidate only when an operator promotes it."""
    validation: ValidationSettings | None = None
    """Measure versions during training; None does not."""
    on_rejected: Literal["stop", "skip"] = "stop"
    """What happens to a batch that the backend refuses for good."""
    alarm: CollapseLimits | None = CollapseLimits()
    """Pause the run if training diverges; null never does, and a limit of null is not watched."""

    @property
    def serve_at_once(self) -> bool:
        """Whether a new version is served without an evaluation."""
        return self.serve == "at_once"


class TrainerSettings(TrainerSection):
    """What one trainer process takes: its section, its run, what all processes share, and what nobody knows better."""

    kafka: KafkaConnection = KafkaConnection()
    namespace: str = DEFAULT_NAMESPACE
    from_namespace: str | None = None
    """Take the batches of a replay there, and end with the last; all records go to `namespace`."""
    run_id: str = Field(default="main", pattern=r"^[a-z0-9][a-z0-9-]*$")
    model: str = "agent"
    max_off_policy_steps: int = Field(default=4, ge=0)
    max_share_per_source: dict[str, float] = Field(default_factory=dict)
    art_server: ArtServerSettings = ArtServerSettings()
    """The model of a backend that the trainer drives itself."""
    endpoint_port: int = 8000
    """Of that model."""
    retry_pauses_s: tuple[float, ...] = (2.0, 15.0, 60.0)
    """A failed step is tried again after each; then the run stops, as what lasts for minutes is seldom over by itself.
    """
    alarm_window_steps: int = WINDOW_STEPS
    """Of the alarm: the median of so many steps is compared with its limits."""
    max_skipped_in_a_row: int = 10
    """If so many batches in a row train nothing, chance is not a reason any more: the run stops."""
    poll_interval_s: float = 0.5
    """How long an ART server may hold a question whether a batch has ended, which it answers at once if it has."""
    batch_wait_s: float = 1.0
    """How long one look for a batch takes: a pause and a stop are heard between two."""

    @property
    def endpoint_token(self) -> SecretStr | None:
        """Of the endpoint that serves the model: the ART server's, or that of the model in this process."""
        return self.backend.token if isinstance(self.backend, ArtServerBackend) else self.art_server.token

    @property
    def backend_is_inside(self) -> bool:
        """Whether updates run in the trainer's process, which then waits for a running one when it stops."""
        return self.backend.type not in ("art-server", "art-serverless")


def local_model_mistake(backend: str, model: ArtServerSettings) -> str | None:
    """Say what the section `art_server` lacks for a backend in the trainer's process; None where it lacks nothing."""
    if backend == "art-local" and model.tinker is not None:
        return (
            "trainer: backend: art-local holds the model here, and `art_server: tinker:` elsewhere; take type: tinker"
        )
    if backend == "art-local" and model.base_model is None:
        return "trainer: backend: art-local needs `art_server: base_model:`, a directory in Hugging Face layout"
    if backend == "tinker" and model.tinker is None:
        return "trainer: backend: tinker needs `art_server: tinker:`, the service that trains"
    return None
