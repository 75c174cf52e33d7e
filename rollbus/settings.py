"""Every setting of every process, as one file holds them; each part receives its own, with what is shared filled in.

namespace, kafka                 shared by all
worker, assembly, scoring, judge, runs  the stream stages
trainer, art_server              training
clickhouse, sink                 analytics
stack                            the local stack
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from rollbus.consumers.clickhouse.settings import ClickHouseSettings, SinkSettings
from rollbus.local.settings import StackSettings
from rollbus.schemas.config import AssemblyConfig, RunConfig, ScoringConfig
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.kafka_connection import KafkaConnection
from rollbus.schemas.topics import DEFAULT_NAMESPACE, wrong_namespace
from rollbus.streams.settings import StreamSettings
from rollbus.trainer.settings import ArtServerBackend, BackendSettings, ModelSettings, TrainerSettings

if TYPE_CHECKING:
    from rollbus.trainer.backends.art_server import ArtServerSettings

SHARED = ("kafka", "namespace", "clickhouse", "run_id", "model", "max_off_policy_steps", "from_namespace")
"""Settings of a part that stand elsewhere in the file: at the top, or in the run."""


Port = Annotated[int, Field(gt=0, lt=65536)]
STARTED_PORTS = ("kafka_port", "kafka_controller_port", "clickhouse_port")
"""Where what `rollbus up` always starts listens; art-server may be left out, or be a service of its own elsewhere."""


class Section(BaseModel):
    """Base of every section: frozen, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ArtServerSection(ModelSettings):
    """The ART server and its model service."""

    model: str = "agent"
    """Name that requests and batches use; answers say `name@version`."""
    base_model: Path | None = None
    """Directory in Hugging Face layout; without it, the demo's small model."""
    directory: Path | None = None
    """Checkpoints and journal; `art` in the stack's data folder without it."""
    token: SecretStr | None = Field(default=None, min_length=1)
    """Bearer token of both ports; None asks for none."""
    host: str = "127.0.0.1"
    keep_checkpoints: int | None = Field(default=None, ge=1)
    """Newest checkpoints kept on disk; all without it. What is served or trained on stays in any case."""
    keep_every: int | None = Field(default=None, ge=1)
    """Checkpoints whose version is a multiple of it stay for good."""


class JudgeSection(Section):
    """The model that `judge` and `judge_relative` ask, behind any OpenAI-compatible endpoint."""

    base_url: str | None = None
    """As `https://api.openai.com/v1`; without it no judge can be asked."""
    model: str = ""
    """A reward's own option `model` wins over it."""
    api_key: SecretStr | None = None
    timeout_s: float = Field(default=60.0, gt=0)
    """Of one request; a reward's own `timeout_s` holds for the whole call."""


class StackSection(Section):
    """Folder and ports of the local stack; two stacks on one machine need different ones."""

    data_dir: Path = Path(".rollbus")
    kafka_port: Port = 9092
    kafka_controller_port: Port = 9093
    clickhouse_port: Port = 8123
    art_port: Port = 7623
    model_port: Port = 8000

    @model_validator(mode="after")
    def _each_port_is_one_services(self) -> "StackSection":
        """Refuse a port given twice: Kafka would end with a page of Java's."""
        ports = Counter(getattr(self, name) for name in STARTED_PORTS)
        if twice := sorted(port for port, count in ports.items() if count > 1):
            raise ValueError(f"port {twice[0]} is given to several services; {', '.join(STARTED_PORTS)} must differ")
        return self

    def as_stack_settings(self) -> StackSettings:
        """Return what `rollbus.local` takes."""
        return StackSettings(**self.model_dump())


class Settings(Section):
    """One file's worth."""

    namespace: str = DEFAULT_NAMESPACE
    """Prefix of every topic, consumer group and transactional id."""
    kafka: KafkaConnection = KafkaConnection()
    worker: StreamSettings = StreamSettings()
    assembly: AssemblyConfig = AssemblyConfig()
    scoring: ScoringConfig = ScoringConfig()
    judge: JudgeSection = JudgeSection()
    runs: tuple[RunConfig, ...] = (RunConfig(),)
    trainer: TrainerSettings = TrainerSettings()
    art_server: ArtServerSection = ArtServerSection()
    clickhouse: ClickHouseSettings = ClickHouseSettings()
    sink: SinkSettings = SinkSettings()
    stack: StackSection = StackSection()

    @field_validator("namespace")
    @classmethod
    def _begins_names_of_topics(cls, namespace: str) -> str:
        if wrong := wrong_namespace(namespace):
            raise ValueError(wrong)
        return namespace

    @model_validator(mode="after")
    def _shared_settings_stand_once(self) -> "Settings":
        for name in ("worker", "trainer", "sink"):
            misplaced = sorted(set(SHARED) & getattr(self, name).model_fields_set)
            if misplaced:
                raise ValueError(f"{name}: {', '.join(misplaced)}: set this at the top of the file, or in the run")
        return self

    @model_validator(mode="after")
    def _runs_have_names_of_their_own(self) -> "Settings":
        names = [run.run_id for run in self.runs]
        if len(names) != len(set(names)):
            raise ValueError(f"runs: every run needs a run_id of its own, got {', '.join(names)}")
        return self

    def stream_settings(self) -> StreamSettings:
        """Return what the worker takes."""
        return self.worker.model_copy(update={"kafka": self.kafka, "namespace": self.namespace})

    def sink_settings(self) -> SinkSettings:
        """Return what the sink takes."""
        return self.sink.model_copy(
            update={"kafka": self.kafka, "namespace": self.namespace, "clickhouse": self.clickhouse}
        )

    def trainer_settings(self, run_id: str | None = None) -> TrainerSettings:
        """Return what the trainer of a run takes; raises ConfigurationError for an unknown run."""
        run = self.run(run_id)
        return self.trainer.model_copy(
            update={
                "backend": self._backend(),
                "kafka": self.kafka,
                "namespace": self.namespace,
                "run_id": run.run_id,
                "model": run.model,
                "max_off_policy_steps": run.batching.max_off_policy_steps,
            }
        )

    def _backend(self) -> BackendSettings:
        """Return the trainer's backend; an ART server without address or token is this file's own."""
        backend = self.trainer.backend
        if not isinstance(backend, ArtServerBackend):
            return backend
        own = {"url": self.stack.as_stack_settings().art_url, "token": self.art_server.token}
        return backend.model_copy(update={key: own[key] for key in own if key not in backend.model_fields_set})

    def run(self, run_id: str | None = None) -> RunConfig:
        """Return a run by its id, the only one without; raises ConfigurationError where that is not clear."""
        names = ", ".join(run.run_id for run in self.runs) or "none"
        if run_id is None and len(self.runs) == 1:
            return self.runs[0]
        if run_id is None:
            raise ConfigurationError(f"there are several runs ({names}); say which with --run")
        found = next((run for run in self.runs if run.run_id == run_id), None)
        if found is None:
            raise ConfigurationError(f"no run {run_id!r} in the settings; there are: {names}")
        return found

    def art_server_settings(self, base_model: Path) -> "ArtServerSettings":
        """Return what the ART server takes."""
        from rollbus.trainer.backends.art_server import ArtServerSettings

        section = self.art_server
        return ArtServerSettings(
            model=section.model,
            base_model=base_model,
            directory=section.directory or self.stack.data_dir / "art",
            host=section.host,
            control_port=self.stack.art_port,
            model_port=self.stack.model_port,
            token=section.token.get_secret_value() if section.token else None,
            keep_checkpoints=section.keep_checkpoints,
            keep_every=section.keep_every,
            options=section.options(),
        )
