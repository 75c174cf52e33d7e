"""Every setting of every process, as one file holds them; each part receives its own with the shared ones filled in.

namespace, kafka, signing        shared by all
worker, assembly, scoring, judge, runs  the stream stages
trainer, art_server              training
clickhouse, sink                 analytics
health                           heartbeats and metrics
archive                          the log beyond Kafka's retention
stack                            the local stack
"""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from rollbus import __version__
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings, SinkSection, SinkSettings
from rollbus.runtime.credentials import (
    FOLDER_VARIABLE,
    METRICS_TOKEN,
    OWNER_KEY,
    PASSWORD,
    READONLY_PASSWORD,
    TOKEN,
    make_secrets,
    read_secret,
    record_ports,
    secrets_folder,
    token_for,
)
from rollbus.runtime.health.alarms.limits import AlarmLimits
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.machine import LOCAL_NAMES
from rollbus.runtime.principals import PRINCIPALS_KEY, PrincipalBook, endings, make_principals
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.namespaces import DEFAULT_NAMESPACE, wrong_namespace
from rollbus.schemas.principals import BY_OWNER, GRANTS, Principal, make_token
from rollbus.schemas.records.config import ESTIMATES, AssemblyConfig, RunConfig, ScoringConfig
from rollbus.schemas.signing import Signing
from rollbus.stack_settings import StackSection, StackSettings
from rollbus.streams.kafka.settings import StreamSettings, WorkerSection
from rollbus.trainer.backends.model_settings import ArtServerSettings, DecisionLog, ServiceSettings
from rollbus.trainer.settings import (
    ArtServerBackend,
    BackendSettings,
    TrainerSection,
    TrainerSettings,
    local_model_mistake,
)

if TYPE_CHECKING:
    from rollbus.runtime.health.heart import Heart
    from rollbus.runtime.http.guard import FindPrincipal

logger = logging.getLogger(__name__)
Kind = Literal[
    "worker",
    "trainer",
    "art-server",
    "sink",
    "resample",
    "proxy",
    "ingest",
    "log-to",
    "alarms",
    "estimate",
    "shadow",
    "archive",
]
"""Of long-running processes."""
MOST_PORT = 65_535
PORTS_BETWEEN_RUNS = 10
"""Between the ports of two runs' trainers: the kinds of processes of one run have neighbouring ones."""
PASSWORDS = {"default": PASSWORD, "readonly": READONLY_PASSWORD}
"""ClickHouse's user → the name of the credential."""


class Section(BaseModel):
    """Base of every section: frozen, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class JudgeSection(Section):
    """The model that `judge` and `judge_relative` ask, behind any OpenAI-compatible endpoint."""

    base_url: str | None = None
    """Such as `https://api.openai.com/v1`; without it no judge can be asked."""
    model: str = ""
    """A reward's own option `model` wins over it."""
    api_key: SecretStr | None = None


class HealthSection(Section):
    """Heartbeats, and where each kind of process serves `/metrics` and `/live`."""

    interval_s: float = Field(default=5.0, gt=0)
    """Between two heartbeats; a process that misses three is dead for the others."""
    metrics_host: str = "127.0.0.1"
    metrics_ports: dict[Kind, Annotated[int, Field(ge=0, le=MOST_PORT)]] = {}
    """By kind of process, such as `{worker: 9464, trainer: 9465}`; 0 takes a free one, a kind without a port serves
    none. The trainer of each further run has the port 10 above the one before."""
    metrics_token: SecretStr | None = Field(default=None, min_length=1)
    """Bearer token of `/metrics`, which opens nothing else; without it, the token of `art_server`."""
    alarms: AlarmLimits = AlarmLimits()
    """What `rollbus status` and `rollbus alarms` call wrong."""


class ArchiveSection(Section):
    """Where `rollbus archive` keeps the log beyond Kafka's retention."""

    url: str | None = None
    """A folder, or a URL of fsspec such as `s3://bucket/rollbus`; `rollbus forget` rewrites what is there."""


class Settings(Section):
    """The content of one settings file."""

    namespace: str = DEFAULT_NAMESPACE
    """Prefix of every topic, consumer group and transactional id."""
    insecure: bool = False
    """True: the servers ask for no token and no password. Every program and every user of this machine can then train
    the model and change the tables."""
    kafka: KafkaConnection = KafkaConnection()
    signing: Signing = Signing()
    """Whose control and whose rewards count; without the owner's key, that of the stack's secrets."""
    worker: WorkerSection = WorkerSection()
    assembly: AssemblyConfig = AssemblyConfig()
    scoring: ScoringConfig = ScoringConfig()
    judge: JudgeSection = JudgeSection()
    runs: tuple[RunConfig, ...] = (RunConfig(),)
    trainer: TrainerSection = TrainerSection()
    art_server: ArtServerSettings = ArtServerSettings()
    clickhouse: ClickHouseSettings = ClickHouseSettings()
    sink: SinkSection = SinkSection()
    health: HealthSection = HealthSection()
    archive: ArchiveSection = ArchiveSection()
    stack: StackSection = StackSection()

    @field_validator("namespace")
    @classmethod
    def _check_namespace(cls, namespace: str) -> str:
        if wrong := wrong_namespace(namespace):
            raise ValueError(wrong)
        return namespace

    @model_validator(mode="after")
    def _require_episodes_that_forget_finds(self) -> "Settings":
        if self.archive.url is not None and self.clickhouse.retention.episodes_days is not None:
            raise ValueError(
                "clickhouse: retention: episodes_days: `rollbus forget --label` would not find the episodes that only "
                "the archive of `archive: url:` still has; leave it out, and shorten texts_days or tokens_days"
            )
        return self

    @model_validator(mode="after")
    def _require_different_run_ids(self) -> "Settings":
        names = [run.run_id for run in self.runs]
        if len(names) != len(set(names)):
            raise ValueError(f"runs: every run needs its own run_id, got {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _require_components_of_different_names(self) -> "Settings":
        names = {reward.name for reward in self.scoring.rewards}
        for run in self.runs:
            if shared := sorted(names & {reward.name for reward in run.grouping.rewards}):
                raise ValueError(
                    f"runs: {run.run_id}: rewards over groups have the names of components of `scoring:`, and would "
                    f"replace these in what is stored: {', '.join(shared)}; give each its own `name:`"
                )
        return self

    @model_validator(mode="after")
    def _require_one_run_of_each_model(self) -> "Settings":
        runs_by_model: dict[str, list[str]] = {}
        for run in self.runs:
            runs_by_model.setdefault(run.model, []).append(run.run_id)
        shared = [f"{', '.join(runs)} train {model!r}" for model, runs in runs_by_model.items() if len(runs) > 1]
        if shared:
            raise ValueError(
                f"runs: {'; '.join(shared)}: a model has one trainer, and the batches of the other run would go stale; "
                "give each run its own `model:`, or compare them with `rollbus replay shadow`"
            )
        return self

    @model_validator(mode="after")
    def _require_ports_of_every_trainer(self) -> "Settings":
        first = self.health.metrics_ports.get("trainer")
        if first and (last := _further_port(first, len(self.runs) - 1)) > MOST_PORT:
            raise ValueError(
                f"health: metrics_ports: trainer: {first} gives the trainer of run {self.runs[-1].run_id} the port "
                f"{last}, and {MOST_PORT} is the highest; take a lower one"
            )
        return self

    @model_validator(mode="after")
    def _require_the_model_of_a_backend_in_the_trainer(self) -> "Settings":
        if mistake := local_model_mistake(self.trainer.backend.type, self.art_server):
            raise ValueError(mistake)
        return self

    @model_validator(mode="after")
    def _require_what_delivery_needs(self) -> "Settings":
        delivered = [run for run in self.runs if run.delivery is not None]
        components = [reward.name for reward in self.scoring.rewards]
        wrong = [
            f"run {run.run_id}: {contradiction}"
            for run in delivered
            if run.delivery is not None
            for contradiction in run.delivery.contradictions(components)
        ]
        measured = {ESTIMATES} if self.trainer.validation is None else {ESTIMATES, self.trainer.validation.name}
        wrong += [
            f"run {run.run_id}: check {check.name}: nothing is called {check.evaluation}, and it would never come; "
            f"there are: {', '.join(sorted(measured))} (`trainer: validation: name:`)"
            for run in delivered
            if run.delivery is not None
            for check in run.delivery.checks
            if check.evaluation not in measured
        ]
        if self.trainer.serve_at_once:
            wrong.append("`trainer: serve: at_once` serves every version to all at once; set `after_evaluation`")
        if self.trainer.promote_if is not None:
            wrong.append("`trainer: promote_if:` serves a version to all at once; leave it out")
        if not isinstance(self.trainer.backend, ArtServerBackend):
            wrong.append(
                f"backend {self.trainer.backend.type} gives no version a share of the episodes; use art-server"
            )
        if self.art_server.art is not None:
            wrong.append("`art_server: art:` serves one version under the model's name, and no share to another")
        if delivered and wrong:
            runs = ", ".join(run.run_id for run in delivered)
            raise ValueError(f"runs: delivery of {runs}: {'; '.join(wrong)}")
        return self

    def with_credentials(self, environment: Mapping[str, str]) -> "Settings":
        """Return the settings with the local stack's credentials where they name none, for servers on this machine."""
        if self.insecure:
            return self
        folder, changes = secrets_folder(self.stack.data_dir, environment), dict[str, BaseModel]()
        if self.art_server.token is None and (token := read_secret(folder, TOKEN)):
            changes["art_server"] = self.art_server.model_copy(update={"token": SecretStr(token)})
        if self.health.metrics_token is None and (token := read_secret(folder, METRICS_TOKEN)):
            changes["health"] = self.health.model_copy(update={"metrics_token": SecretStr(token)})
        signing: dict[str, object] = {}
        if not self.signing.owner and (key := read_secret(folder, OWNER_KEY)):
            signing["owner"] = (SecretStr(key),)
        if not self.signing.principals and (key := read_secret(folder, PRINCIPALS_KEY)):
            signing |= {"principals": (SecretStr(key),), "ended": {**endings(folder), **self.signing.ended}}
        if signing:
            changes["signing"] = Signing.model_validate({**dict(self.signing), **signing})
        name = PASSWORDS.get(self.clickhouse.user)
        is_ours = self.clickhouse.host in LOCAL_NAMES or FOLDER_VARIABLE in environment  # a container's own secrets
        if is_ours and not self.clickhouse.password.get_secret_value() and name:
            password = SecretStr(read_secret(folder, name) or "")
            changes["clickhouse"] = self.clickhouse.model_copy(update={"password": password})
        return self.model_copy(update=changes)

    def with_stack_addresses(self) -> "Settings":
        """Return the settings with the local stack's ports where they name no Kafka and no ClickHouse.

        Else a second stack on other ports would be started, and everything written into the first.
        """
        changes = dict[str, BaseModel]()
        if "bootstrap_servers" not in self.kafka.model_fields_set:
            bootstrap_servers = self.stack.bootstrap_servers
            changes["kafka"] = self.kafka.model_copy(update={"bootstrap_servers": bootstrap_servers})
        if not {"host", "port"} & self.clickhouse.model_fields_set:
            port = self.stack.clickhouse_port
            changes["clickhouse"] = self.clickhouse.model_copy(update={"port": port})
        return self.model_copy(update=changes)

    def with_token(self, host: str, ports: Sequence[int], environment: Mapping[str, str]) -> "Settings":
        """Return the settings of a server on `host`, whose token is made if there is none; note its ports.

        Raises ConfigurationError if it would be open to other machines.
        """
        if self.insecure and host not in LOCAL_NAMES:
            raise ConfigurationError(
                f"`insecure: true` serves everybody, and {host} is not a loopback address; set a token"
            )
        if self.insecure:
            logger.warning("INSECURE: every program and every user of this machine is served without a token")
        if self.insecure:
            return self
        folder, has_token = secrets_folder(self.stack.data_dir, environment), self.art_server.token is not None
        if not has_token:
            make_secrets(folder)
            make_principals(folder)
        record_ports(folder, *ports)
        return self if has_token else self.with_credentials(environment)

    def find_principal(self) -> "FindPrincipal | None":
        """Return what knows the tokens of principals at a door; None where every door is open."""
        return None if self.insecure else PrincipalBook(secrets_folder(self.stack.data_dir, os.environ))

    def sign_as(self, name: str) -> str | None:
        """Return the token by which a process of the owner signs what it records; None without the key for it."""
        if not self.signing.principals:
            return None
        root = self.signing.principals[0].get_secret_value().encode()
        return make_token(root, Principal(name, frozenset(GRANTS), BY_OWNER))

    def token_of(self, url: str) -> SecretStr | None:
        """Return the token for a server: this file's for the stack's own, else what `rollbus up` made, or None."""
        address = urlsplit(url).netloc
        ports, names = (self.stack.art_port, self.stack.model_port), (*LOCAL_NAMES, self.art_server.host)
        if address in {f"{name}:{port}" for name in names for port in ports}:
            return self.art_server.token
        token = token_for(url)
        return SecretStr(token) if token else None

    def stack_settings(self) -> StackSettings:
        """Return what `rollbus.local` takes."""
        return StackSettings(**dict(self.stack), insecure=self.insecure)

    def local_services(self) -> frozenset[str]:
        """Return the services that these settings expect on this machine, where `rollbus up` starts them."""
        stack, local = self.stack_settings(), set()
        if self.kafka.bootstrap_servers == stack.bootstrap_servers:
            local.add("kafka")
        if (self.clickhouse.host, self.clickhouse.port) == ("127.0.0.1", stack.clickhouse_port):
            local.add("clickhouse")
        backend = self.trainer_settings(self.runs[0].run_id).backend if self.runs else None
        if isinstance(backend, ArtServerBackend) and backend.url == stack.art_url:
            local.add("art-server")
        return frozenset(local)

    def stream_settings(self) -> StreamSettings:
        """Return the settings of the worker."""
        if self.signing.is_used and not self.signing.owner:
            raise ConfigurationError("signing: sources have keys, but the owner has none; set `signing: owner:`, too")
        return StreamSettings(**dict(self.worker), kafka=self.kafka, namespace=self.namespace, signing=self.signing)

    def sink_settings(self) -> SinkSettings:
        """Return the settings of the sink."""
        return SinkSettings(**dict(self.sink), kafka=self.kafka, namespace=self.namespace, clickhouse=self.clickhouse)

    def trainer_settings(self, run_id: str | None = None) -> TrainerSettings:
        """Return the settings of a run's trainer; raises ConfigurationError for an unknown run."""
        run = self.run(run_id)
        return TrainerSettings(
            **{**dict(self.trainer), "backend": self._backend()},
            kafka=self.kafka,
            namespace=self.namespace,
            run_id=run.run_id,
            model=run.model,
            max_off_policy_steps=run.batching.max_off_policy_steps,
            max_share_per_source=run.batching.max_share_per_source,
            art_server=self.art_server.model_copy(update={"directory": self._model_directory}),
            endpoint_port=self.stack.model_port,
        )

    def _backend(self) -> BackendSettings:
        """Return the trainer's backend; an ART server without address or token gets those of this file."""
        backend = self.trainer.backend
        if not isinstance(backend, ArtServerBackend):
            return backend
        if backend.token is None and (file := backend.token_file) is not None:
            token = read_secret(file.parent, file.name)
            backend = backend.model_copy(update={"token": SecretStr(token) if token else None})
        defaults: dict[str, object] = {"url": self.stack_settings().art_url}
        defaults["token"] = self.token_of(backend.url if "url" in backend.model_fields_set else str(defaults["url"]))
        return backend.model_copy(
            update={key: defaults[key] for key in defaults if key not in backend.model_fields_set}
        )

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

    def heart(self, kind: Kind, run_id: str | None = None) -> "Heart":
        """Return the heartbeat and metrics of a process of this kind; of a run's, on the run's own port."""
        from rollbus.runtime.health.heart import Heart  # with a Kafka client, which most commands do not need

        token = self.health.metrics_token or self.art_server.token
        port = self.health.metrics_ports.get(kind)
        if port and run_id is not None:
            port = _further_port(port, [run.run_id for run in self.runs].index(run_id))
        return Heart(
            self.kafka,
            self.namespace,
            kind,
            __version__,
            interval_s=self.health.interval_s,
            folder=self.stack.data_dir,
            metrics_host=self.health.metrics_host,
            metrics_port=port,
            metrics_token=token.get_secret_value() if token else None,
        )

    def metrics_addresses(self) -> dict[str, str]:
        """Return `host:port` of each kind of process that serves `/metrics` on a port of its own."""
        hearts = {kind: self.heart(kind) for kind in get_args(Kind)}
        trainers = {run.run_id: self.heart("trainer", run.run_id) for run in self.runs[1:]}
        hearts |= {f"trainer of {run_id}": heart for run_id, heart in trainers.items()}
        hearts_with_metrics = {name: heart for name, heart in hearts.items() if heart.metrics_port}
        return {name: f"{heart.metrics_host}:{heart.metrics_port}" for name, heart in hearts_with_metrics.items()}

    def _delivers(self, model: str) -> bool:
        return any(run.delivery is not None and run.model == model for run in self.runs)

    @property
    def _model_directory(self) -> Path:
        return self.art_server.directory or self.stack.data_dir / "art"

    def art_server_settings(self, base_model: Path) -> ServiceSettings:
        """Return the settings of the ART server; its control port is in the section `stack`."""
        section = self.art_server
        return ServiceSettings(
            model=section.model,
            base_model=base_model,
            directory=self._model_directory,
            host=section.host,
            port=self.stack.model_port,
            api_key=section.token.get_secret_value() if section.token else None,
            find_principal=self.find_principal(),
            insecure=self.insecure,
            retention=section.retention,
            decisions=DecisionLog(self.kafka, self.namespace) if self._delivers(section.model) else None,
            options=section,
            tinker=section.tinker,
        )


def _further_port(first: int, runs_before: int) -> int:
    """Return the port of a run's trainer."""
    return first + PORTS_BETWEEN_RUNS * runs_before
