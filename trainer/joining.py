"""Frames of a partition, in order → whole records: passes records through and joins those that came in chunks."""

from rollbus.schemas import joining
from rollbus.schemas.chunks import is_chunk, parse
from rollbus.schemas.joining import Whole

MAX_OPEN = 64
"""Records in parts at a time; an older one whose rest never came is given up."""


class Joiner:
    """Collects the chunks of one partition."""

    def __init__(self) -> None:
        self._parts = joining.Joiner[int]()

    def add(self, data: bytes, offset: int) -> Whole[int] | None:
        """Return a whole record, placed where it began, or None while parts are missing.

        Raises UndecodableError for a broken one.
        """
        if not is_chunk(data):
            return Whole(data, offset)
        whole = self._parts.add(parse(data), offset)
        if len(self._parts) > MAX_OPEN:
            oldest, _ = next(iter(self._parts))
            self._parts.forget(oldest)
        return whole
