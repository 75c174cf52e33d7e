"""`up`, `status` and `down` of the local stack: a table of services → running processes, and back.

`up` starts what is missing and leaves what runs; `down` ends only what `up` started, known by pid and start time; data
stay. All raise ConfigurationError or UnavailableError with what to do; none prints.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rollbus.local.clickhouse.server import find_server, server_service
from rollbus.local.clickhouse.service import clickhouse_service
from rollbus.local.kafka.service import kafka_service
from rollbus.local.process import state
from rollbus.local.process.ports import describe_listener, is_free, listener_of, require_free
from rollbus.local.process.processes import end, is_running
from rollbus.local.process.service import Service, ServiceProcess, answers_http
from rollbus.runtime.credentials import (
    NO_TOKEN,
    OWNER_KEY,
    PASSWORD,
    READONLY_PASSWORD,
    TOKEN,
    make_secrets,
    read_secret,
    record_ports,
)
from rollbus.runtime.machine import disk_usage
from rollbus.runtime.principals import make_principals
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.schemas.wall_clock import wall_clock_ms
from rollbus.stack_settings import StackSettings
from rollbus.trainer.backends.wire import CAPABILITIES

FREE_BYTES_NEEDED = 1 << 30
"""Room for Kafka's segments and ClickHouse's parts of some demos; both break if the disk fills up."""
ART_START_TIMEOUT_S = 240.0
"""It imports ART and torch first, which alone takes 20 s on an idle machine."""

State = Literal["running", "started", "starting", "unhealthy", "stopped", "crashed", "port in use"]


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The state of one service, for people."""

    name: str
    state: State
    """'running' answers; 'started' means by this call, and answers; 'starting' does not answer yet, and still may;
    'unhealthy' has had its time and does not answer;
    'crashed' was started and has ended without `down`; 'port in use' has another program on its port."""
    address: str
    pid: int | None = None
    detail: str = ""


def stack_services(settings: StackSettings, *, art_command: Sequence[str] | None = None) -> tuple[Service, ...]:
    """The services of the stack in the order in which they start; art-server only if its command is given."""
    kafka = kafka_service(folder=settings.kafka_dir, client_port=settings.kafka_port)
    port, binary = settings.clickhouse_port, find_server()
    secrets = None if settings.insecure else settings.secrets_dir
    if binary is None:
        clickhouse = clickhouse_service(folder=settings.clickhouse_dir, port=port, secrets=secrets)
    else:
        clickhouse = server_service(
            binary=binary, folder=settings.clickhouse_dir / "server", port=port, secrets=secrets
        )
    if art_command is None:
        return kafka, clickhouse
    return kafka, clickhouse, art_service(settings, art_command)


def art_service(settings: StackSettings, command: Sequence[str]) -> Service:
    """art-server under the command line that runs it with these settings."""
    return Service(
        name="art-server",
        command=lambda: list(command),
        is_healthy=lambda: answers_http(settings.art_port, "/health"),
        address=settings.art_url,
        ports={"art_port": settings.art_port, "model_port": settings.model_port},
        start_timeout_s=ART_START_TIMEOUT_S,
        is_ours=lambda: answers_http(
            settings.art_port, CAPABILITIES, token=read_secret(settings.secrets_dir, TOKEN) or NO_TOKEN
        ),
    )


def require_startable(
    settings: StackSettings,
    services: Sequence[Service],
    *,
    free_bytes: Callable[[Path], int | None] = lambda path: _free_bytes(path),
) -> None:
    """Raise ConfigurationError early if `up` could not start: the disk is full, or a port is taken.

    Credentials are made last: those of a stack that never started would be taken for those of the one on its ports.
    """
    with _writing(settings):
        _make_folders(settings)
    _require_space(settings.data_dir, free_bytes(settings.data_dir))
    with state.hold_run_dir(settings.run_dir):
        for service in services:
            _require_free_ports(settings, service)
    with _writing(settings):
        _make_credentials(settings)


def up(
    settings: StackSettings,
    services: Sequence[Service],
    *,
    report: Callable[[ServiceStatus], None] = lambda status: None,
    free_bytes: Callable[[Path], int | None] = lambda path: _free_bytes(path),
) -> tuple[ServiceStatus, ...]:
    """Start what is missing, all at once, and return when all of it answers; calls `report` for each that answers.

    What runs with the credentials of this stack, started by hand or in another folder, is left as it is.
    """
    require_startable(settings, services, free_bytes=free_bytes)
    with state.hold_run_dir(settings.run_dir):
        statuses = [_find_status(settings, service) for service in services if _runs_unrecorded(settings, service)]
        missing = [service for service in services if service.name not in {status.name for status in statuses}]
        for service, process, started_now in [(row, *_ensure_started(settings, row)) for row in missing]:
            _wait(settings, process)
            pid = process.identity.pid if process.identity else None
            statuses.append(ServiceStatus(service.name, "started" if started_now else "running", service.address, pid))
            report(statuses[-1])
    return tuple(statuses)


def status(settings: StackSettings, services: Sequence[Service]) -> tuple[ServiceStatus, ...]:
    """Return how each service is now; changes nothing."""
    return tuple(_find_status(settings, service) for service in services)


def down(
    settings: StackSettings, *, report: Callable[[ServiceStatus], None] = lambda status: None
) -> tuple[ServiceStatus, ...]:
    """End what `up` started, the last one first; return what was ended."""
    if not settings.run_dir.is_dir():
        return ()
    statuses = []
    with state.hold_run_dir(settings.run_dir):
        for service in reversed(state.read_all(settings.run_dir)):
            was_running = end(service.identity)
            state.remove(settings.run_dir, service.name)
            detail = "" if was_running else f"process {service.identity.pid} had already ended"
            statuses.append(ServiceStatus(service.name, "stopped", service.address, service.identity.pid, detail))
            report(statuses[-1])
    return tuple(statuses)


def log_path(settings: StackSettings, name: str) -> Path:
    return settings.log_dir / f"{name}.log"


def _require_free_ports(settings: StackSettings, service: Service) -> None:
    """Raise ConfigurationError if a port of a stopped service is taken; end what a crashed one has left behind."""
    process_state = state.read(settings.run_dir, service.name)
    if process_state is not None and is_running(process_state.identity):
        return
    if _runs_unrecorded(settings, service):
        return
    if process_state is not None:
        end(process_state.identity)
        state.remove(settings.run_dir, service.name)
    for setting, port in service.ports.items():
        require_free(port, service=service.name, setting=setting)


def _runs_unrecorded(settings: StackSettings, service: Service) -> bool:
    """Whether it runs with the credentials of this stack, and `up` did not start it here."""
    process_state = state.read(settings.run_dir, service.name)
    if process_state is not None and is_running(process_state.identity):
        return False
    if all(map(is_free, service.ports.values())):
        return False
    return service.is_ours() or _shares_secrets(settings, _find_stack_at(service))


def _find_stack_at(service: Service) -> Path | None:
    """Return the data folder of the stack that listens on a service's ports; None if none does."""
    owners = (listener_of(port) for port in service.ports.values())
    return next((stack for pid in owners if pid is not None and (stack := state.find_stack_of(pid)) is not None), None)


def _shares_secrets(settings: StackSettings, data_dir: Path | None) -> bool:
    """Whether these settings name the credentials of a stack in another folder, as ROLLBUS_SECRETS does."""
    return data_dir is not None and (data_dir / "secrets").resolve() == settings.secrets_dir.resolve()


def _ensure_started(settings: StackSettings, service: Service) -> tuple[ServiceProcess, bool]:
    """Return its process, and whether it was started just now."""
    log = log_path(settings, service.name)
    process_state = state.read(settings.run_dir, service.name)
    if process_state is not None:
        return ServiceProcess(service, log_path=log, identity=process_state.identity), False
    process = ServiceProcess(service, log_path=log)
    identity = process.start()
    started_at_ms = wall_clock_ms()
    state.write(settings.run_dir, state.StartedService(service.name, identity, service.address, started_at_ms))
    return process, True


def _wait(settings: StackSettings, process: ServiceProcess) -> None:
    """Wait until it is healthy; one that fails is ended, and the others stay for `down`."""
    try:
        process.wait_until_healthy()
    except UnavailableError:
        process.stop()
        state.remove(settings.run_dir, process.service.name)
        raise


def _find_status(settings: StackSettings, service: Service) -> ServiceStatus:
    process_state = state.read(settings.run_dir, service.name)
    log = log_path(settings, service.name)
    if process_state is not None and is_running(process_state.identity):
        pid = process_state.identity.pid
        if service.is_healthy():
            return ServiceStatus(service.name, "running", service.address, pid)
        age_s = (wall_clock_ms() - process_state.started_at_ms) / 1000
        if age_s < service.start_timeout_s:
            return ServiceStatus(service.name, "starting", service.address, pid, f"for {age_s:.0f} s; its log is {log}")
        return ServiceStatus(service.name, "unhealthy", service.address, pid, f"does not answer; see {log}")
    if _runs_unrecorded(settings, service):
        listeners = [listener for port in service.ports.values() if (listener := listener_of(port)) is not None]
        stack = _find_stack_at(service)
        detail = "started by hand: `rollbus down` leaves it" if stack is None else f"of the local stack in {stack}"
        return ServiceStatus(service.name, "running", service.address, listeners[0] if listeners else None, detail)
    for port in service.ports.values():
        if not is_free(port):
            owner = listener_of(port)
            detail = f"port {port} is used by {describe_listener(owner)}, which `up` did not start here"
            return ServiceStatus(service.name, "port in use", service.address, owner, detail)
    if process_state is not None:
        detail = f"process {process_state.identity.pid} ended without `down`; see {log}"
        return ServiceStatus(service.name, "crashed", service.address, None, detail)
    return ServiceStatus(service.name, "stopped", service.address)


def _make_folders(settings: StackSettings) -> None:
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings.data_dir.chmod(0o700)
    for folder in (settings.run_dir, settings.log_dir):
        folder.mkdir(parents=True, exist_ok=True)


def _make_credentials(settings: StackSettings) -> None:
    if settings.insecure:
        return
    new = not settings.kafka_dir.exists()  # an older log has records without a signature
    make_secrets(settings.secrets_dir, (TOKEN, PASSWORD, READONLY_PASSWORD, *(OWNER_KEY,) * new))
    make_principals(settings.secrets_dir)
    record_ports(settings.secrets_dir, settings.art_port, settings.model_port)


@contextmanager
def _writing(settings: StackSettings) -> Iterator[None]:
    """Name the data folder where it cannot be written."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            f"the data folder {settings.data_dir} cannot be written: {error.strerror}; set `data_dir` to another one"
        ) from error


def _free_bytes(folder: Path) -> int | None:
    """Return what is free where a folder is; None where the system does not say."""
    usage = disk_usage(folder)
    return None if usage is None else usage.free


def _require_space(folder: Path, free: int | None) -> None:
    if free is not None and free < FREE_BYTES_NEEDED:
        raise ConfigurationError(
            f"only {free / 2**30:.2f} GiB free where {folder} lies, and the local stack needs "
            f"{FREE_BYTES_NEEDED / 2**30:.0f} GiB; free some, or set `data_dir` to another disk"
        )
