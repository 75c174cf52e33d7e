"""Frames of a partition, in order → whole records: passes records through and joins those that came in chunks."""

from rollbus.schemas import joining

MAX_OPEN = 64
"""Records in parts at a time; an older one whose rest never came is given up."""


class Joiner:
    """Collects the chunks of one partition."""

    def __init__(self) -> None:
        self._parts = joining.Joiner[None]()

    def add(self, data: bytes) -> bytes | None:
        """Return a whole record's bytes, or None while parts are missing; raises UndecodableError for a broken one."""
        whole = self._parts.whole(data, None)
        if len(self._parts) > MAX_OPEN:
            oldest, _ = next(iter(self._parts))
            self._parts.forget(oldest)
        return whole
