"""Least privilege from the one table of topics: role → what its principal must be allowed on the broker.

Names are whole if they are known, and a prefix if only their beginning is, such as those of a trainer's models. Each
program is a role, and so is each command of an operator, since few people need all of them. The programs in `OTHERS`
need no role of their own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rollbus.schemas.topics import (
    BATCHES,
    CURRICULUM,
    DATA_SETS,
    DEAD_LETTERS,
    EPISODE_EVENTS,
    EXCLUSIONS,
    HEARTBEATS,
    REPLAYS,
    RUN_LOG,
    STAGE_INPUTS,
    TOPICS,
    TRAINING_STEPS,
    Topic,
)
from rollbus.streams.kafka import names

Role = Literal["producer", "proxy", "worker", "trainer", "sink", "resampler", "replay", "promote", "forget", "operator"]
ROLES: tuple[Role, ...] = get_args(Role)
OTHERS: Mapping[str, str] = {
    "ingest serve": "as proxy: a producer that beats",
    "an agent with `route=`": "as proxy: it reads who serves, and with it the key of the canary's draw",
    "status, top, doctor": "as operator",
    "alarms, log-to": "as operator, and Read on their group `logger.`",
    "policy": "as trainer",
    "export, sql": "nothing: they read ClickHouse",
    "ui": "as operator, for health, lag, feedback and data sets; nothing for all else",
    "archive run": "as replay",
    "archive restore, discard": "an administrator's Create, Read, Write and Delete of `restored-…`",
    "topics create": "an administrator's Create and DescribeConfigs",
}
"""Programs without a role, and what they need instead."""
REPLAY_PREFIX = "replay-"
"""Of every namespace that a replay writes into."""
_ANY = {"any stage": "worker", "any consumer": "worker"}
_CHANGELOG = ("Describe", "DescribeConfigs", "Read", "Write")
_SINGULAR: dict[str, Role] = {
    "producers": "producer",
    "proxy": "proxy",
    "trainer": "trainer",
    "art-server": "trainer",
    "ticker": "worker",
    "resample agent": "resampler",
}


_INPUTS = tuple(dict.fromkeys(STAGE_INPUTS.values()))


@dataclass(frozen=True, slots=True)
class Command:
    """What one of an operator's commands does on the broker."""

    reads: tuple[Topic, ...]
    writes: tuple[Topic, ...]
    transaction: str | None = None


COMMANDS: Mapping[Role, Command] = {
    "replay": Command(TOPICS, (REPLAYS, HEARTBEATS)),
    "promote": Command((RUN_LOG, REPLAYS), tuple(topic for topic in _INPUTS if not topic.is_open), "promote"),
    "forget": Command((EPISODE_EVENTS, EXCLUSIONS, TRAINING_STEPS, REPLAYS), (EPISODE_EVENTS, EXCLUSIONS), "forget"),
    "operator": Command(
        (RUN_LOG, CURRICULUM, BATCHES, DEAD_LETTERS, TRAINING_STEPS, HEARTBEATS, *_INPUTS),
        (RUN_LOG, DATA_SETS, HEARTBEATS, *_INPUTS),
    ),
}
"""`rollbus replay`; `replay promote`; `forget`; `run`, `dead-letters`, `status`, `alarms` and the page."""
LOOKING: tuple[Role, ...] = ("operator", "forget")
"""Roles that see how far the sink is in every topic."""
BEATING: tuple[Role, ...] = ("proxy", "worker", "trainer", "sink", "resampler")
"""Roles of processes that write heartbeats."""


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """One permission of a role's principal."""

    resource: Literal["topic", "group", "transactional-id"]
    name: str
    operations: tuple[str, ...]
    pattern: Literal["literal", "prefixed"] = "literal"

    def arguments(self) -> str:
        """Return it as arguments of Kafka's own `kafka-acls`."""
        operations = " ".join(f"--operation {operation}" for operation in self.operations)
        return f"{operations} --{self.resource} '{self.name}' --resource-pattern-type {self.pattern}"


def acls(role: Role, namespace: str, stages: Iterable[Any] = ()) -> list[Acl]:
    """Return what a role needs in a namespace; `stages` are those that its workers host."""
    if role in COMMANDS:
        return sorted([*_of_command(namespace, role, COMMANDS[role]), *_of_lag(namespace, role, stages)])
    needed = [_topic(topic, namespace, role) for topic in TOPICS if _uses_topic(topic, role)]
    if role in BEATING:
        operations = ("Describe", *("DescribeConfigs",) * (role == "worker"), "Write")
        needed.append(Acl("topic", HEARTBEATS.full_name(namespace), operations))
    if role == "worker":
        needed += _of_stages(namespace, stages)
    elif role == "trainer":
        needed.append(Acl("group", f"{namespace}trainer.", ("Read",), "prefixed"))
        needed.append(Acl("transactional-id", f"{namespace}trainer.", ("Describe", "Write"), "prefixed"))
    elif role == "sink":
        needed.append(Acl("group", f"{namespace}sink", ("Read",)))
    elif role == "resampler":
        needed.append(Acl("group", f"{namespace}resample-agent.", ("Read",), "prefixed"))
    return sorted(needed)


def _of_command(namespace: str, role: Role, command: Command) -> Iterable[Acl]:
    for topic in (*TOPICS, HEARTBEATS):
        reads, writes = topic in command.reads, topic in command.writes
        if reads or writes or role in LOOKING:
            operations = ("Describe", *("Read",) * reads, *("Write",) * writes)
            yield Acl("topic", topic.full_name(namespace), operations)
    if command.transaction is not None:
        yield Acl("transactional-id", namespace + command.transaction, ("Describe", "Write"))
    if role == "replay":
        replay_operations = ("Create", "Delete", "Describe", "DescribeConfigs", "Read", "Write")
        yield Acl("topic", REPLAY_PREFIX, replay_operations, "prefixed")
        yield Acl("group", REPLAY_PREFIX, ("Describe", "Read"), "prefixed")


def _of_lag(namespace: str, role: Role, stages: Iterable[Any]) -> Iterable[Acl]:
    """Yield what shows an operator how far every consumer group is, and `forget` how far the sink is."""
    if role in LOOKING:
        yield Acl("group", f"{namespace}sink", ("Describe",))
    if role == "operator":
        for group in ("trainer.", "logger.", "resample-agent."):
            yield Acl("group", namespace + group, ("Describe",), "prefixed")
        for stage in stages:
            yield Acl("group", names.group_id(namespace, stage.name), ("Describe",))


def _of_stages(namespace: str, stages: Iterable[Any]) -> list[Acl]:
    """Return a worker's changelogs, groups and transactions, and the ticker's."""
    ticker_changelog = names.changelog_topic(namespace, names.TICKER)
    needed = [Acl("topic", ticker_changelog, _CHANGELOG)]
    needed.append(Acl("transactional-id", names.ticker_id(namespace), ("Describe", "Write")))
    for stage in stages:
        group = names.group_id(namespace, stage.name)
        transactions = names.transactional_id(namespace, stage.name, "")
        needed.append(Acl("topic", names.changelog_topic(namespace, stage.name), _CHANGELOG))
        needed.append(Acl("group", group, ("Read",)))
        needed.append(Acl("transactional-id", transactions, ("Describe", "Write"), "prefixed"))
    return needed


def _topic(topic: Topic, namespace: str, role: Role) -> Acl:
    operations = ("Describe", *("DescribeConfigs",) * (role == "worker"))
    operations += ("Read",) * _reads(topic, role) + ("Write",) * _writes(topic, role)
    return Acl("topic", topic.full_name(namespace), operations)


def _uses_topic(topic: Topic, role: Role) -> bool:
    """Say whether a role uses a topic; a worker checks the settings of all before it starts."""
    return role == "worker" or _reads(topic, role) or _writes(topic, role)


def _reads(topic: Topic, role: Role) -> bool:
    if role == "sink":
        return True
    return any(_role_of(program) == role for program in topic.read_by)


def _writes(topic: Topic, role: Role) -> bool:
    if role in ("proxy", "resampler"):  # what they run records as any producer does
        role = "producer"
    if topic == DEAD_LETTERS:
        return role in ("worker", "trainer")
    if topic.name == "drops" and role == "trainer":
        return True
    return any(_role_of(program) == role for program in topic.written_by)


def _role_of(program: str) -> str | None:
    if program in STAGE_INPUTS:
        return "worker"
    return _SINGULAR.get(program) or _ANY.get(program)
