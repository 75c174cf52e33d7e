"""Run our own code inside the host's program: what it raises is counted and logged, never passed on.

Each hook has a name, so that the counter `hook_errors.<name>` says what broke. A hook logs at most once a minute.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from rollbus.producers.delivery.counters import Counters

logger = logging.getLogger(__name__)
LOG_INTERVAL_S = 60.0
Result = TypeVar("Result")


class Guard:
    """Keeps what the recorder raises away from its host."""

    def __init__(self, counters: Counters) -> None:
        """Count into these counters."""
        self.counters = counters
        self._logged: dict[str, float] = {}

    def call(self, hook: str, function: Callable[..., Result], *args: Any, default: Result, **kwargs: Any) -> Result:
        """Return what the function returns, or the default where it raises."""
        try:
            return function(*args, **kwargs)
        except Exception as error:  # whatever it is, the host must not see it
            self.failed(hook, error)
            return default

    def failed(self, hook: str, error: BaseException) -> None:
        """Count and log one failure of a hook; cannot raise itself."""
        try:
            self.counters.add(f"hook_errors.{hook}")
            now = time.monotonic()
            if now - self._logged.get(hook, -LOG_INTERVAL_S) >= LOG_INTERVAL_S:
                self._logged[hook] = now
                logger.warning("rollbus: %s failed, the call itself goes on: %r", hook, error)
        except Exception:  # a logging handler or a __repr__ that raises
            return
