"""A changelog that cannot be read says which one it is, which of its rows, and what to do."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.shared_reading import SharedReading
from rollbus.schemas.errors import UndecodableError
from rollbus.schemas.records.config import RunConfig
from rollbus.streams.exactly_once.changelog import POSITION_KEY, position_row, restore
from rollbus.streams.stages.grouping.state import GroupingState

POSITION = position_row(7)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((b"mark\x1ft", b"\x09later"), r"mark/t has version 9.*run the newer release"),
        ((b"later\x1ft", b"\x01"), r"unknown table b'later'.*run the newer release"),
        ((POSITION_KEY, b"\x02" + POSITION[1][1:]), r"position has version 2.*run the newer release"),
        ((b"mark\x1ft", b"\x01short"), r"row b'mark\\x1ft' of 6 bytes is damaged.*restore"),
        ((b"mark\x1ft", b""), r"row b'mark\\x1ft' of 0 bytes is damaged.*restore"),
        ((b"habit\x1fk", b"\x01{"), r"row b'habit\\x1fk' of 2 bytes is damaged.*restore"),
        ((POSITION_KEY, b"\x01"), r"row b'\\x1fposition' of 1 bytes is damaged.*restore"),
    ],
)
async def test_a_row_that_cannot_be_read_is_named_with_its_changelog_and_a_remedy(
    row: tuple[bytes, bytes], message: str
) -> None:
    class Rows(SharedReading):
        async def read(self, topic: str, partition: int, take: Callable[[Any], None]) -> None:
            for key, value in (POSITION, row):
                take(SimpleNamespace(key=key, value=value))

    state = GroupingState(RunConfig())
    with pytest.raises(UndecodableError, match=rf"^t\.grouping\.main\.changelog\[3\]: .*{message}"):
        await restore(Rows(KafkaConnection()), "t.grouping.main.changelog", 3, state.restore)
