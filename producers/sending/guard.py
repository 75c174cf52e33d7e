"""Run our own code inside the host's program: what it raises is counted and logged, never passed on.

Each hook has a name, so that the counter `hook_errors.<name>` says what broke. A hook logs at most once a minute. A
function that a framework calls and that fails again and again is switched off for the rest of the process:
`hook_calls_skipped.hook`.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from rollbus.producers.sending.counters import Counters

logger = logging.getLogger(__name__)
LOG_INTERVAL_S = 60.0
FRAMEWORKS = "hook"
"""Name of what a framework calls. Any other call may fail by what it was given, such as a user's feedback or headers,
and works again with the next: none of these is ever switched off."""
REPORT = "feedback"
"""Name of what reports on any episode at any time: by its failure, nothing of the episodes that are open is missing."""
MOST_FAILURES = 100
"""Of one function in a row: it fails for a reason that stays, such as another version of a framework."""
Result = TypeVar("Result")


class HostGuard:
    """Keeps what the recorder raises away from its host."""

    def __init__(self, counters: Counters) -> None:
        """Count into these counters."""
        self.counters = counters
        self.failure_count = 0
        """Failures and skipped calls so far, but for reports: what was recorded meanwhile may lack something."""
        self._logged: dict[str, float] = {}
        self._failures_in_a_row: dict[str, int] = {}
        """By hook and function."""

    def call(self, hook: str, function: Callable[..., Result], /, *args: Any, default: Result, **kwargs: Any) -> Result:
        """Return what the function returns, or the default where it raises or is switched off."""
        key = f"{hook} {getattr(function, '__qualname__', '')}"
        if self._is_switched_off(hook, key):
            return default
        try:
            result = function(*args, **kwargs)
        except Exception as error:  # whatever it is, the host must not see it
            self._count_in_a_row(hook, key, error)
            return default
        if self._failures_in_a_row:
            self._failures_in_a_row.pop(key, None)
        return result

    async def call_async(
        self, hook: str, function: Callable[..., Awaitable[Result]], /, *args: Any, default: Result, **kwargs: Any
    ) -> Result:
        """Do the same with a function that is awaited."""
        key = f"{hook} {getattr(function, '__qualname__', '')}"
        if self._is_switched_off(hook, key):
            return default
        try:
            result = await function(*args, **kwargs)
        except Exception as error:
            self._count_in_a_row(hook, key, error)
            return default
        if self._failures_in_a_row:
            self._failures_in_a_row.pop(key, None)
        return result

    def _is_switched_off(self, hook: str, key: str) -> bool:
        """Say whether a function has failed too often; a call that is skipped is counted."""
        if not self._failures_in_a_row or self._failures_in_a_row.get(key, 0) < MOST_FAILURES:
            return False
        self.failure_count += 1
        self.counters.add(f"hook_calls_skipped.{hook}")
        return True

    def _count_in_a_row(self, hook: str, key: str, error: Exception) -> None:
        self.failed(hook, error)
        if hook != FRAMEWORKS:
            return
        self._failures_in_a_row[key] = failures = self._failures_in_a_row.get(key, 0) + 1
        if failures == MOST_FAILURES:
            self._log("rollbus: %s failed %d times in a row and is switched off: %r", hook, MOST_FAILURES, error)

    def failed(self, hook: str, error: BaseException) -> None:
        """Count and log one failure of a hook; cannot raise itself."""
        self.failure_count += hook != REPORT
        try:
            self.counters.add(f"hook_errors.{hook}")
            now = time.monotonic()
            if now - self._logged.get(hook, -LOG_INTERVAL_S) >= LOG_INTERVAL_S:
                self._logged[hook] = now
                self._log("rollbus: %s failed, the call itself goes on: %r", hook, error)
        except Exception:  # a clock that raises
            return

    def _log(self, line: str, *values: object) -> None:
        try:
            logger.warning(line, *values)
        except Exception:  # a logging handler or a __repr__ that raises
            return
