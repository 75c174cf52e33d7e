"""An answer that is too large to build first: the engine's blocks, piece by piece, in the format that was asked for.

Only formats whose pieces, one after the other, are the whole: what has a head or an end around its rows is built first.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from rollbus.local.clickhouse_errors import from_engine

STREAMED_FORMATS = frozenset(
    {"Native", "TabSeparated", "TSV", "TabSeparatedRaw", "TSVRaw", "Raw", "CSV", "JSONEachRow", "NDJSON", "JSONLines",
     "JSONCompactEachRow", "JSONStringsEachRow", "RowBinary"}
)  # fmt: skip
WHOLE_BYTES = 1_048_576
"""Answers up to here are built first: their summary is known, and a failure has a status. As a server's buffer."""


class Rest:
    """Pieces that follow; `close` gives back what they need, whether or not all were taken."""

    def __init__(self, pieces: Iterator[bytes], close: Callable[[], None]) -> None:
        self._pieces = pieces
        self._close: Callable[[], None] | None = close

    def next(self) -> bytes | None:
        """The next piece, None after the last; raises ClickHouseError."""
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


def blocks(stream: Any) -> Iterator[Any]:
    """The results of a stream, one per block."""
    while (result := stream.fetch()) is not None and result.bytes():
        yield result


def read_ahead(stream: Any, limit: int = WHOLE_BYTES) -> tuple[list[Any], Iterator[Any] | None]:
    """The first blocks up to a size, and the others; None if there are no others."""
    found, size = [], 0
    following = blocks(stream)
    for result in following:
        found.append(result)
        size += len(result.bytes())
        if size > limit:
            second = next(following, None)
            return found, None if second is None else chain([second], following)
    return found, None
