"""Address of a call → the server that was asked, as a record may name it."""

from functools import lru_cache
from urllib.parse import urlsplit

MOST_SERVERS = 256
"""Remembered: an agent asks a few, thousands of times."""


@lru_cache(MOST_SERVERS)
def server_of(address: str) -> str:
    """Return scheme, host and port; empty for what is not an address. Credentials, path and query may hold secrets."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}" if parts.scheme and host else ""
