"""How long the broker holds a fetch that finds nothing: it answers at once where a record comes."""

from typing import Any


def set_fetch_wait(consumer: Any, wait_ms: int) -> None:
    """Let the broker hold the fetches of an aiokafka consumer for so long, from the next one on; any thread may ask."""
    fetcher = getattr(consumer, "_fetcher", None)
    if fetcher is not None:
        fetcher._fetch_max_wait_ms = wait_ms
