"""How long the broker holds a fetch that finds nothing; a record that comes meanwhile ends the wait at once.

aiokafka takes this time when a consumer is made. A stage changes it as traffic comes and goes, so it is set on the
fetcher of the running consumer, which reads it for each fetch; a test holds that the installed aiokafka still does.
"""

from typing import Any


def set_fetch_wait(consumer: Any, wait_ms: int) -> None:
    """Let the broker hold the fetches of an aiokafka consumer for so long, from the next one on; any thread may call.

    Does nothing to a consumer that is not started, or is None.
    """
    fetcher = getattr(consumer, "_fetcher", None)
    if fetcher is not None:
        fetcher._fetch_max_wait_ms = wait_ms
