"""The prefix of every topic, consumer group and transactional id: its default, and which texts can be one.

Settings need it; `topics` needs every record, which takes a tenth of a second to load.
"""

import re

DEFAULT_NAMESPACE = "rollbus."

_KAFKA_NAME = re.compile(r"[a-zA-Z0-9._-]{0,120}")
"""Kafka's own characters. Its names have at most 249, and the names of topics, stages and runs follow a namespace."""

RESTORED = re.compile(r"restored-[a-z0-9][a-z0-9-]{0,40}\.")
"""Begins the names of topics that an archive was restored into; the name that was archived follows."""


def wrong_namespace(namespace: str) -> str | None:
    """Return why a text cannot be a namespace; None if it can."""
    if _KAFKA_NAME.fullmatch(namespace):
        return None
    return "Kafka's names are of letters, digits, `.`, `_` and `-`, here at most 120"
