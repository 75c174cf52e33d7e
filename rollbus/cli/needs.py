"""What a command that reads the log needs of the broker, looked at first: its topic."""

import asyncio
from typing import TYPE_CHECKING

from rollbus.schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbus.settings import Settings


def needs_topic(settings: "Settings", *names: str) -> None:
    """Raise ConfigurationError where the namespace lacks one of these topics.

    Kafka's client would look for it a thousand times a second, for most of a minute, and say so each time.
    """
    from rollbus.streams.topics_kafka import topics_on_broker

    stream = settings.stream_settings()
    there = asyncio.run(topics_on_broker(stream))
    for name in names:
        if stream.namespace + name not in there:
            raise no_topic(settings, name)


def no_topic(settings: "Settings", name: str) -> ConfigurationError:
    """Return the error for a namespace that has no such topic."""
    stream = settings.stream_settings()
    return ConfigurationError(
        f"there is no topic {stream.namespace}{name} at {stream.kafka.bootstrap_servers}: `rollbus topics create` "
        "makes the namespace's topics; or look at `namespace:`"
    )
