"""Every setting of every process, as one file holds them; each part receives its own with the shared ones filled in.

namespace, kafka, signing        shared by all
worker, assembly, scoring, judge, runs  the stream stages
trainer, art_server              training
clickhouse, sink                 analytics
stack                            the local stack
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings, SinkSettings
from rollbus.local.process.settings import StackSettings
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.kafka.connection import KafkaConnection
from rollbus.schemas.records.config import AssemblyConfig, RunConfig, ScoringConfig
from rollbus.schemas.signing import Signing
from rollbus.schemas.topics import DEFAULT_NAMESPACE, wrong_namespace
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.trainer.backends.model_settings import ModelOptions, Retention, ServiceSettings
from rollbus.trainer.settings import ArtServerBackend, BackendSettings, TrainerSettings

SHARED = (
    *("kafka", "namespace", "signing", "clickhouse", "run_id", "model", "from_namespace"),
    *("max_off_policy_steps", "max_share_per_source"),
)
"""Settings of a part that the file holds elsewhere: at the top, or in the run."""


class Section(BaseModel):
    """Base of every section: frozen, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ArtServerSection(ModelOptions):
    """The ART server and its model service."""

    model: str = "agent"
    """Name that requests and batches use; answers name `name@version`."""
    base_model: Path | None = None
    """Directory in Hugging Face layout; without it, SmolLM2 if it is fetched, else the demo's small model."""
    directory: Path | None = None
    """Checkpoints and journal; `art` in the stack's data folder without it."""
    token: SecretStr | None = Field(default=None, min_length=1)
    """Bearer token of both ports; None asks for none."""
    host: str = "127.0.0.1"
    keep_checkpoints: int | None = Field(default=None, ge=1)
    """Newest checkpoints kept on disk; all without it. A version that is served or trained on is always kept."""
    keep_every: int | None = Field(default=None, ge=1)
    """Checkpoints whose version is a multiple of it are kept for good."""


class JudgeSection(Section):
    """The model that `judge` and `judge_relative` ask, behind any OpenAI-compatible endpoint."""

    base_url: str | None = None
    """Such as `https://api.openai.com/v1`; without it no judge can be asked."""
    model: str = ""
    """A reward's own option `model` wins over it."""
    api_key: SecretStr | None = None
    timeout_s: float = Field(default=60.0, gt=0)
    """Of one request; a reward's own `timeout_s` holds for the whole call."""


class Settings(Section):
    """The content of one settings file."""

    namespace: str = DEFAULT_NAMESPACE
    """Prefix of every topic, consumer group and transactional id."""
    kafka: KafkaConnection = KafkaConnection()
    signing: Signing = Signing()
    """Whose control and whose rewards count; without the owner's key, that of the stack's data folder."""
    worker: StreamSettings = StreamSettings()
    assembly: AssemblyConfig = AssemblyConfig()
    scoring: ScoringConfig = ScoringConfig()
    judge: JudgeSection = JudgeSection()
    runs: tuple[RunConfig, ...] = (RunConfig(),)
    trainer: TrainerSettings = TrainerSettings()
    art_server: ArtServerSection = ArtServerSection()
    clickhouse: ClickHouseSettings = ClickHouseSettings()
    sink: SinkSettings = SinkSettings()
    stack: StackSettings = StackSettings()

    @field_validator("namespace")
    @classmethod
    def _check_namespace(cls, namespace: str) -> str:
        if wrong := wrong_namespace(namespace):
            raise ValueError(wrong)
        return namespace

    @model_validator(mode="after")
    def _require_shared_settings_once(self) -> "Settings":
        for name in ("worker", "trainer", "sink"):
            misplaced = sorted(set(SHARED) & getattr(self, name).model_fields_set)
            if misplaced:
                raise ValueError(f"{name}: {', '.join(misplaced)}: set this at the top of the file, or in the run")
        return self

    @model_validator(mode="after")
    def _require_different_run_ids(self) -> "Settings":
        names = [run.run_id for run in self.runs]
        if len(names) != len(set(names)):
            raise ValueError(f"runs: every run needs its own run_id, got {', '.join(names)}")
        return self

    def stream_settings(self) -> StreamSettings:
        """Return the settings of the worker."""
        shared = {"kafka": self.kafka, "namespace": self.namespace, "signing": self._signing()}
        return self.worker.model_copy(update=shared)

    def _signing(self) -> Signing:
        """Return the keys; without the owner's, that of the stack's data folder is taken. Raises ConfigurationError."""
        keys, path = self.signing, self.stack.owner_key_file
        if keys.owner:
            return keys
        if path.exists():
            try:
                return Signing(owner=(SecretStr(path.read_text().strip()),), **keys.model_dump(exclude={"owner"}))
            except OSError as error:
                raise ConfigurationError(f"the owner's key {path} cannot be read: {error.strerror}") from error
        if keys.is_used:
            raise ConfigurationError("signing: sources have keys, but the owner has none; set `signing: owner:`, too")
        return keys

    def sink_settings(self) -> SinkSettings:
        """Return the settings of the sink."""
        return self.sink.model_copy(
            update={"kafka": self.kafka, "namespace": self.namespace, "clickhouse": self.clickhouse}
        )

    def trainer_settings(self, run_id: str | None = None) -> TrainerSettings:
        """Return the settings of a run's trainer; raises ConfigurationError for an unknown run."""
        run = self.run(run_id)
        return self.trainer.model_copy(
            update={
                "backend": self._backend(),
                "kafka": self.kafka,
                "namespace": self.namespace,
                "run_id": run.run_id,
                "model": run.model,
                "max_off_policy_steps": run.batching.max_off_policy_steps,
                "max_share_per_source": run.batching.max_share_per_source,
            }
        )

    def _backend(self) -> BackendSettings:
        """Return the trainer's backend; an ART server without address or token gets those of this file."""
        backend = self.trainer.backend
        if not isinstance(backend, ArtServerBackend):
            return backend
        own = {"url": self.stack.art_url, "token": self.art_server.token}
        return backend.model_copy(update={key: own[key] for key in own if key not in backend.model_fields_set})

    def run(self, run_id: str | None = None) -> RunConfig:
        """Return a run by its id, or the only one; raises ConfigurationError if there are several or none."""
        names = ", ".join(run.run_id for run in self.runs) or "none"
        if run_id is None and len(self.runs) == 1:
            return self.runs[0]
        if run_id is None:
            raise ConfigurationError(f"there are several runs ({names}); say which with --run")
        for run in self.runs:
            if run.run_id == run_id:
                return run
        raise ConfigurationError(f"no run {run_id!r} in the settings; there are: {names}")

    def art_server_settings(self, base_model: Path) -> ServiceSettings:
        """Return the settings of the ART server; its control port is in the section `stack`."""
        section = self.art_server
        return ServiceSettings(
            model=section.model,
            base_model=base_model,
            directory=section.directory or self.stack.data_dir / "art",
            host=section.host,
            port=self.stack.model_port,
            api_key=section.token.get_secret_value() if section.token else None,
            retention=Retention(section.keep_checkpoints, section.keep_every),
            options=section,
        )
