"""Check first that the broker has the topics that a command reads."""

import asyncio

from rollbus.cli.root import Settings
from rollbus.schemas.errors import ConfigurationError


def require_topics(settings: Settings, *names: str) -> None:
    """Raise ConfigurationError if the namespace lacks one of these topics.

    Kafka's client would look for it a thousand times a second, for most of a minute, and log each attempt.
    """
    from rollbus.streams.kafka.topics_on_broker import topics_on_broker

    stream = settings.stream_settings()
    existing = asyncio.run(topics_on_broker(stream))
    for name in names:
        if stream.namespace + name not in existing:
            raise missing_topic(settings, name)


def missing_topic(settings: Settings, name: str) -> ConfigurationError:
    """Return the error for a namespace that has no such topic."""
    from rollbus.schemas.namespaces import RESTORED

    stream = settings.stream_settings()
    made_by = "`rollbus topics create` makes the namespace's topics; or look at `namespace:`"
    if RESTORED.match(stream.namespace):
        made_by = "the restore has not ended; discard it and restore again, or look at `namespace:`"
    return ConfigurationError(
        f"there is no topic {stream.namespace}{name} at {stream.kafka.bootstrap_servers}: {made_by}"
    )
