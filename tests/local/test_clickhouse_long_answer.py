"""A long answer on its way: what its statement holds is given back, however its reader takes it."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message

from rollbus.local.clickhouse.endpoint import SLICE_BYTES, LongResponse

LIMIT_S = 0.02


class Statement:
    """Pieces of an answer, and whether their statement has ended."""

    def __init__(self, *pieces: bytes) -> None:
        self.ended = False
        self._pieces = pieces

    async def read(self) -> AsyncGenerator[bytes]:
        try:
            for piece in self._pieces:
                yield piece
        finally:
            self.ended = True


class Reader:
    """Takes what it is sent, up to a number of messages; then it stands still."""

    def __init__(self, patience: int = 1_000) -> None:
        self.bodies: list[bytes] = []
        self.is_whole = False
        self._patience = patience

    async def send(self, message: Message) -> None:
        if self._patience == 0:
            await asyncio.Event().wait()
        self._patience -= 1
        if message["type"] == "http.response.body":
            self.bodies.append(message["body"])
            self.is_whole = not message["more_body"]


@pytest.mark.parametrize("patience", [1, 2, 3])
async def test_a_stalled_reader_loses_its_answer_and_its_statement(patience: int) -> None:
    statement, reader = Statement(b"one", b"two", b"three"), Reader(patience)
    await LongResponse(statement.read(), limit_s=LIMIT_S).stream_response(reader.send)
    assert (reader.is_whole, statement.ended) == (False, True)


async def test_without_a_limit_a_reader_is_waited_for() -> None:
    statement, reader = Statement(b"one", b"two"), Reader(patience=2)
    sending = asyncio.create_task(LongResponse(statement.read()).stream_response(reader.send))
    await asyncio.sleep(5 * LIMIT_S)
    assert not sending.done()
    sending.cancel()
    await asyncio.wait([sending])
    assert statement.ended


async def test_no_more_than_a_slice_waits_for_a_reader() -> None:
    piece = bytes(3 * SLICE_BYTES + 1)
    statement, reader = Statement(piece), Reader()
    await LongResponse(statement.read()).stream_response(reader.send)
    assert [len(body) for body in reader.bodies] == [SLICE_BYTES] * 3 + [1, 0]
