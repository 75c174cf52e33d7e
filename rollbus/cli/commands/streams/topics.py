"""`rollbus topics`: create and check the namespace's topics on the broker."""

import asyncio
import sys
from typing import TYPE_CHECKING, cast

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.required_topics import require_topics
from rollbus.cli.root import Settings, with_settings
from rollbus.hosted_stages import all_stages, create_topics
from rollbus.terminal.output import Console, OutputTable, echo, format_time

if TYPE_CHECKING:
    from rollbus.streams.operate.acls import Role

HOUR_MS = 3_600_000
ROLES = ("producer", "proxy", "worker", "trainer", "sink", "resampler", "replay", "promote", "forget", "operator")
"""As in `streams/operate/acls.py`; loading that for a help text would be slow."""


@click.group(cls=Verbs)
def topics() -> None:
    """Create, check, list and draw the Kafka topics."""


@topics.command()
@click.option("--acls", "with_acls", is_flag=True, help="Also allow User:ROLE what `rollbus topics acls` prints.")
@with_settings
def create(settings: Settings, with_acls: bool) -> None:
    """Create every topic that is missing, with its partitions, retention and limits."""
    created = asyncio.run(create_topics(settings))
    for name in created:
        echo(f"created {name}")
    if not created:
        echo("every topic exists with the right settings")
    if with_acls:
        asyncio.run(_allow_roles(settings))
        echo(f"allowed each of {', '.join(ROLES)} what it needs")


@topics.command()
@with_settings
def check(settings: Settings) -> None:
    """Show what is wrong with the topics; exit with code 1 if something is."""
    from rollbus.streams.kafka.topics_on_broker import check_topics

    wrong = asyncio.run(check_topics(settings.stream_settings(), all_stages(settings)))
    for line in wrong or ["every topic exists with the right settings"]:
        echo(line)
    sys.exit(bool(wrong))


@topics.command("list")
@with_settings
def list_(settings: Settings) -> None:
    """List the topics: partitions, retention, records, and the oldest time and tick that can be replayed."""
    from rollbus.streams.kafka.topics_on_broker import describe_topics

    require_topics(settings, "episode-events")
    table = OutputTable("topic", "partitions", "kept", "records", "oldest (UTC)", "oldest tick")
    for topic in asyncio.run(describe_topics(settings.stream_settings(), all_stages(settings))):
        retention = topic.retention if topic.retention_ms is None else f"{topic.retention_ms / HOUR_MS:g} h"
        oldest = "–" if topic.oldest_timestamp_ms is None else format_time(topic.oldest_timestamp_ms)
        tick = "–" if topic.oldest_tick is None else str(topic.oldest_tick)
        table.add_row(topic.name, str(topic.partitions), retention, str(topic.records), oldest, tick)
    Console().print(table)
    if not settings.stream_settings().signing.is_used:
        echo("signatures of ticks were not checked: these settings have no key of the owner (`signing: owner:`)")


@topics.command()
def graph() -> None:
    """Print the topology as a mermaid flowchart."""
    from rollbus.streams.kafka.topics import topology_mermaid

    echo(topology_mermaid())


@topics.command("acls")
@click.option("--role", "roles", type=click.Choice(ROLES), multiple=True, help="Print only this role; repeatable.")
@with_settings
def acls_(settings: Settings, roles: tuple[str, ...]) -> None:
    """Print what each role's principal must be allowed, as arguments of Kafka's `kafka-acls --add`."""
    from rollbus.streams.operate.acls import OTHERS, acls

    stages = all_stages(settings)
    for role in ROLES:
        if roles and role not in roles:
            continue
        echo(f"# {role}: --allow-principal 'User:<{role}>'")
        for acl in acls(cast("Role", role), settings.stream_settings().namespace, stages):
            echo(acl.arguments())
    if not roles:
        for program, needs in OTHERS.items():
            echo(f"# {program}: {needs}")


async def _allow_roles(settings: Settings) -> None:
    from rollbus.streams.operate.acls import acls
    from rollbus.streams.operate.acls_on_broker import allow

    stream, stages = settings.stream_settings(), all_stages(settings)
    for role in ROLES:
        await allow(stream.kafka, role, acls(cast("Role", role), stream.namespace, stages))
