"""An answer that is too large to build first: the engine's blocks, piece by piece, in the requested format.

This works only for formats whose pieces can be joined. A format with a head or an end around its rows is built first.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from rollbus.local.clickhouse.errors import from_engine

STREAMED_FORMATS = frozenset(
    {"Native", "TabSeparated", "TSV", "TabSeparatedRaw", "TSVRaw", "Raw", "CSV", "JSONEachRow", "NDJSON", "JSONLines",
     "JSONCompactEachRow", "JSONStringsEachRow", "RowBinary"}
)  # fmt: skip
WHOLE_BYTES = 1_048_576
"""Answers up to this size are built first, as in a server's buffer: they have a full summary and an error status."""


class Rest:
    """The pieces that follow; `close` releases what they need, whether or not all were read."""

    def __init__(self, pieces: Iterator[bytes], close: Callable[[], None]) -> None:
        self._pieces = pieces
        self._close: Callable[[], None] | None = close

    def next(self) -> bytes | None:
        """Return the next piece, None after the last; raises ClickHouseError."""
        try:
            return next(self._pieces, None)
        except Exception as error:
            raise from_engine(error) from error

    def close(self) -> None:
        """End the statement."""
        close, self._close = self._close, None
        if close is not None:
            close()

    def __del__(self) -> None:
        self.close()


def read_blocks(stream: Any) -> Iterator[Any]:
    """Yield the results of a stream, one per block."""
    while (result := stream.fetch()) is not None and result.bytes():
        yield result


def read_ahead(stream: Any, limit: int = WHOLE_BYTES) -> tuple[list[Any], Iterator[Any] | None]:
    """Return the first blocks up to a size, and an iterator of the others, or None if there are no others."""
    first, size = [], 0
    following = read_blocks(stream)
    for result in following:
        first.append(result)
        size += len(result.bytes())
        if size > limit:
            second = next(following, None)
            return first, None if second is None else chain([second], following)
    return first, None
