"""A large answer, sent while the engine makes it: its blocks, piece by piece, in the requested format.

This works only for formats whose pieces can be joined. An answer in a format with a head or an end around its rows is
built whole before it is sent, as a small one is.
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
"""Answers up to this size are built before they are sent, as in a server's buffer: so they have a full summary, and an
error has its status."""


class RemainingPieces:
    """The pieces after the first of a long answer; `close` releases what they need, whether or not all were read."""

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
        """End the statement; a second call does nothing."""
        close, self._close = self._close, None
        if close is not None:
            close()

    def __del__(self) -> None:
        self.close()


def read_blocks(stream: Any) -> Iterator[Any]:
    """Yield the results of a stream, one per block."""
    while (result := stream.fetch()) is not None and result.bytes():
        yield result


def read_ahead(stream: Any) -> tuple[list[Any], Iterator[Any] | None]:
    """Return the first blocks, up to WHOLE_BYTES, and an iterator of the others, or None if there are no others."""
    first_blocks, size_bytes = [], 0
    blocks = read_blocks(stream)
    for block in blocks:
        first_blocks.append(block)
        size_bytes += len(block.bytes())
        if size_bytes > WHOLE_BYTES:
            next_block = next(blocks, None)
            return first_blocks, None if next_block is None else chain([next_block], blocks)
    return first_blocks, None
