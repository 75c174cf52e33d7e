"""Frames of a partition, in order → whole records: passes records through and joins those that came in chunks."""

from rollbus.schemas.chunks import Chunk, is_chunk, join, parse

MAX_OPEN = 64
"""Records in parts at a time; an older one whose rest never came is given up."""


class Joiner:
    """Collects the chunks of one partition."""

    def __init__(self) -> None:
        self._parts: dict[bytes, dict[int, bytes]] = {}

    def add(self, data: bytes) -> bytes | None:
        """Return a whole record's bytes, or None while parts are missing; raises UndecodableError for a broken one."""
        if not is_chunk(data):
            return data
        chunk: Chunk = parse(data)
        parts = self._parts.setdefault(chunk.digest, {})
        parts[chunk.index] = chunk.part
        if len(parts) < chunk.count:
            if len(self._parts) > MAX_OPEN:
                del self._parts[next(iter(self._parts))]
            return None
        del self._parts[chunk.digest]
        return join(parts, chunk.digest)
