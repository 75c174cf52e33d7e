"""Ports that kill the trainer before or after any one of their calls."""

from collections.abc import Awaitable, Callable
from typing import Any


class Crash(BaseException):
    """The process ends here: nothing of the trainer may catch it."""


class CrashAt:
    """Counts the calls of every port it wraps, two points each; raises at the given point, once."""

    def __init__(self, point: int | None, error: type[BaseException] = Crash) -> None:
        self.point = point
        self.error = error
        self.passed = 0
        self.place = ""

    def wrap(self, port: Any) -> Any:
        """Return the port with both points around each of its coroutines."""
        return _Wrapped(port, self)

    def at(self, place: str) -> None:
        """Pass a point, or end there."""
        self.passed += 1
        if self.passed - 1 == self.point:
            self.place = place
            raise self.error(place)


class _Wrapped:
    def __init__(self, port: Any, crash: CrashAt) -> None:
        self._port = port
        self._crash = crash

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self._port, name)

        async def around(*args: Any, **options: Any) -> Any:
            self._crash.at(f"before {name}")
            result = await call(*args, **options)
            self._crash.at(f"after {name}")
            return result

        return around
