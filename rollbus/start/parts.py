"""Settings, local services, topics and heartbeats → each part that a project needs, there or missing. Pure."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from rollbus.local.stack import ServiceStatus
from rollbus.runtime.health.alarms.processes import ProcessHealth
from rollbus.settings import Settings

MOVE_PORTS = (
    "end that program, or write `stack: {kafka_port: 21400}` into rollbus.yaml, which moves all ports of this one"
)
TOPICS, WORKER, SINK, TRAINER = "topics", "worker", "sink", "trainer"


@dataclass(frozen=True, slots=True)
class Part:
    """A service, the topics, or a process, without which a project does not learn."""

    name: str
    is_there: bool
    detail: str
    """Where it is, or why it is missing."""
    can_start: bool = True
    """False for a service on another machine, and for one whose port another program has."""
    remedy: str = "start it, or correct its address"
    """What to do if it cannot be started here."""
    run: str = ""
    """Of a trainer: the run that it trains."""


def find_parts(
    settings: Settings,
    services: Sequence[ServiceStatus],
    *,
    answering: Collection[str],
    topic_mistakes: Sequence[str] | None,
    processes: Sequence[ProcessHealth] | None,
) -> tuple[Part, ...]:
    """Return every part, in the order in which they start.

    `answering` names the services, local or not, that answer; `topic_mistakes` is None while Kafka cannot be asked, and
    so is `processes`.
    """
    return (
        *_find_services(settings, services, answering),
        _find_topics(topic_mistakes),
        *find_processes(settings, processes or ()),
    )


def _find_services(settings: Settings, services: Sequence[ServiceStatus], answering: Collection[str]) -> Iterator[Part]:
    local = settings.local_services()
    addresses = {
        "kafka": settings.kafka.bootstrap_servers,
        "clickhouse": f"{settings.clickhouse.host}:{settings.clickhouse.port}",
    }
    for service in services:
        if service.name in local:
            is_there = service.name in answering
            why_missing = service.detail or f"{service.state}; it would be {service.address}"
            detail = service.address if is_there else why_missing
            can_start = service.state != "port in use"
            yield Part(service.name, is_there, detail, can_start=can_start, remedy=MOVE_PORTS)
        elif service.name in addresses:
            is_there, address = service.name in answering, addresses[service.name]
            detail = address if is_there else f"{address} does not answer; it is not of this machine's stack"
            yield Part(service.name, is_there, detail, can_start=False)


def _find_topics(mistakes: Sequence[str] | None) -> Part:
    if mistakes is None:
        return Part(TOPICS, False, "not known before Kafka answers")
    if not mistakes:
        return Part(TOPICS, True, "every topic exists with the right settings")
    more = f" and {len(mistakes) - 1} more" if len(mistakes) > 1 else ""
    return Part(TOPICS, False, mistakes[0] + more)


def is_beating(settings: Settings, part: Part, processes: Sequence[ProcessHealth]) -> bool:
    """Say whether a process of a part beats; of a trainer, that of the part's own run."""
    parts = find_processes(settings, processes)
    return any(other.is_there for other in parts if (other.name, other.run) == (part.name, part.run))


def find_processes(settings: Settings, processes: Sequence[ProcessHealth]) -> Iterator[Part]:
    """Yield worker, sink, and the trainer of each run: there is one that beats, or it is missing."""
    alive = [process for process in processes if process.is_alive]
    for kind in (WORKER, SINK):
        names = [process.name for process in alive if process.kind == kind]
        yield Part(kind, bool(names), ", ".join(names) or "no process of this kind beats")
    for run in settings.runs:
        subject = f"run {run.run_id} of {run.model}"
        names = [process.name for process in alive if process.kind == TRAINER and subject in process.holds]
        yield Part(TRAINER, bool(names), ", ".join(names) or f"no trainer beats for {subject}", run=run.run_id)
