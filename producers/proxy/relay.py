"""One call of a model on its way through: asked for with tokens, recorded, and returned as the program expects it."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

from rollbus.producers.capture.answer_tap import AnswerTap
from rollbus.producers.capture.call import RecordedCall, RefusalError

Send = Callable[[bytes], "Any"]
"""Sends a body upstream and returns (awaitable) the response, whose own body is not read yet."""


async def send(call: RecordedCall, upstream: Send) -> httpx.Response:
    """Return the server's answer, asked for once more without our additions where it refuses them."""
    response: httpx.Response = await upstream(call.body())
    if response.is_success:
        call.on_answer()
        return response
    refusal = RefusalError(response.status_code, (await response.aread()).decode(errors="replace"))
    return await send(call, upstream) if call.retry(refusal) else response


async def stream_answer(tap: AnswerTap, response: httpx.Response) -> AsyncIterator[bytes]:
    """Record a stream of server-sent events while the program reads it."""
    try:
        async for piece in response.aiter_bytes():
            if visible := tap.feed(piece):
                yield visible
        if visible := tap.end():
            yield visible
    finally:
        tap.finish(complete=False)
