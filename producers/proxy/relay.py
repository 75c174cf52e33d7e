"""One call of a model on its way through: asked for with tokens, recorded, and returned as the program expects it."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import httpx

from rollbus.producers.capture.attributes import dump, parse
from rollbus.producers.capture.call import RecordedCall, StreamWatch

Send = Callable[[bytes], "Any"]
"""Sends a body upstream and returns (awaitable) the response, whose own body is not read yet."""
EVENT_END = b"\n\n"
DATA = b"data:"
DONE = b"[DONE]"


@dataclass(slots=True)
class RefusalError(Exception):
    """An answer of the server that says what it does not accept; read by `RecordedCall.retry`."""

    status_code: int
    body: str


async def send(call: RecordedCall, upstream: Send) -> httpx.Response:
    """Return the server's answer, asked for once more without our additions where it refuses them."""
    response: httpx.Response = await upstream(_body(call.kwargs))
    if response.is_success:
        call.on_answer()
        return response
    refusal = RefusalError(response.status_code, (await response.aread()).decode(errors="replace"))
    return await send(call, upstream) if call.retry(refusal) else response


def whole(call: RecordedCall, body: bytes) -> bytes:
    """Record an unstreamed answer and return what the program gets; a body that is not JSON is returned as it is."""
    try:
        answer = parse(body)
    except ValueError:
        call.on_error()
        return body
    call.record_answer(answer)
    return dump(answer) if call.is_hiding else body


async def streamed(call: RecordedCall, watch: StreamWatch, response: httpx.Response) -> AsyncIterator[bytes]:
    """Record a stream of server-sent events while the program reads it."""
    try:
        async with aclosing(_events(response)) as events:
            async for event in events:
                if (shown := _shown(call, watch, event)) is not None:
                    yield shown
        watch.finish(complete=True)
    finally:
        watch.finish(complete=False)


def _shown(call: RecordedCall, watch: StreamWatch, event: bytes) -> bytes | None:
    """Record one event and return what the program gets of it; None where it is to see nothing."""
    lines = event.splitlines()
    data = b"".join(line[len(DATA) :].strip() for line in lines if line.startswith(DATA))
    if not data or data == DONE:
        return event + EVENT_END
    try:
        chunk = parse(data)
    except ValueError:
        return event + EVENT_END
    if not watch.take(chunk):
        return None
    if not call.is_hiding:
        return event + EVENT_END
    others = [line for line in lines if not line.startswith(DATA)]  # its name, its id
    return b"\n".join([*others, DATA + b" " + dump(chunk)]) + EVENT_END


async def _events(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Return the events of a stream, whole, whichever way the network cut it."""
    waiting = b""
    async for piece in response.aiter_bytes():
        *events, waiting = (waiting + piece).replace(b"\r\n", b"\n").split(EVENT_END)
        for event in events:
            yield event
    if waiting.strip():
        yield waiting


def _body(arguments: Mapping[str, Any]) -> bytes:
    """Return the request's JSON: the client's `extra_body` is merged into the rest."""
    extra = arguments.get("extra_body") or {}
    return dump({**{name: value for name, value in arguments.items() if name != "extra_body"}, **extra})
