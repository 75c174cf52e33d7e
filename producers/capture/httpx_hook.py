"""The calls of models that leave through httpx, or httpx2: of one client, or of all of a process.

Above authentication and redirects, so that these see the request as it is sent; beneath the SDKs, so that their
version does not matter. The application gets the same responses of the same types.
"""

import functools
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from rollbus.producers.capture.answer_tap import AnswerTap
from rollbus.producers.capture.call import Capture, RecordedCall, RefusalError
from rollbus.producers.capture.endpoints import begin_call
from rollbus.producers.capture.replace_method import replace_method
from rollbus.producers.episode import context

MODULES = ("httpx", "httpx2")
FIRST_ERROR = 400
TWIN = "RecordedClient"
"""Name of the class of a twin, by which one is known again."""
PLAIN = "IdentityDecoder"
"""Name of the decoder, in httpx and httpx2, of what is not packed."""


def patch_httpx(module: ModuleType, capture: Capture, stack: ExitStack) -> None:
    """Record the calls of all clients of a module until the stack is closed."""
    is_on = [True]
    for cls in (module.Client, module.AsyncClient):
        is_async = cls is module.AsyncClient
        replace_method(
            cls, "send", functools.partial(_recording, capture=capture, is_on=is_on, is_async=is_async), stack
        )
    stack.callback(is_on.clear)


def recorded_twin(http: Any, capture: Capture) -> Any:
    """Return a client on the same connections whose calls are recorded; raises TypeError where it is none of httpx."""
    if (cls := type(http)).__name__ == TWIN and cls.capture.outbox is capture.outbox:
        http, cls = cls.original, type(cls.original)  # the new options replace those of the twin that was wrapped
    modules = [module for name in MODULES if (module := sys.modules.get(name)) is not None]
    is_async = any(isinstance(http, module.AsyncClient) for module in modules)
    if not is_async and not any(isinstance(http, module.Client) for module in modules):
        raise TypeError(f"{cls.__name__} is not a client of httpx")
    send = _recording(cls.send, capture, [True], is_async=is_async)
    names = {"send": send, "capture": capture, "original": http, "__del__": _stay_open}
    twin: Any = object.__new__(type(TWIN, (cls,), names))
    twin.__dict__ = http.__dict__  # one state: what one of them closes is closed
    return twin


_diverted: ContextVar[Any] = ContextVar("rollbus_diverted", default=None)


@contextmanager
def divert_while_open(twin: Any) -> Iterator[None]:
    """Let the requests inside that the twin's original makes be the twin's."""
    token = _diverted.set(twin)
    try:
        yield
    finally:
        _diverted.reset(token)


def divert(http: Any) -> None:
    """Make a client ask at each request whether it is its twin's.

    A method that another tool has patched holds the original client, so its requests would pass the twin by.
    """
    cls = type(http)

    def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        twin = _diverted.get()
        if twin is None or twin.original is not self:
            return cls.send(self, *args, **kwargs)
        return type(twin).send(twin, *args, **kwargs)

    http.__class__ = type(cls.__name__, (cls,), {"send": send})


def _stay_open(self: Any) -> None:
    """Leave the connections to the original, which the application may still use."""


def _recording(original: Any, capture: Capture, is_on: list[bool], *, is_async: bool) -> Any:
    """Return the method `send` of a client, recorded."""
    if is_async:

        @functools.wraps(original)
        async def send_async(self: Any, request: Any, *, stream: bool = False, **options: Any) -> Any:
            call = _begin(capture, request) if is_on else None
            if call is None:
                return await original(self, request, stream=stream, **options)
            send = functools.partial(original, self, stream=True, **options)
            steps, result, error = _send_recorded(call, send, request, "aread", stream=stream), None, None
            while True:
                try:
                    awaitable = steps.send(result) if error is None else steps.throw(error)
                except StopIteration as end:
                    return end.value
                result = error = None
                try:
                    result = await awaitable
                except BaseException as failure:
                    error = failure

        return send_async

    @functools.wraps(original)
    def send(self: Any, request: Any, *, stream: bool = False, **options: Any) -> Any:
        call = _begin(capture, request) if is_on else None
        if call is None:
            return original(self, request, stream=stream, **options)
        send = functools.partial(original, self, stream=True, **options)
        steps, result = _send_recorded(call, send, request, "read", stream=stream), None
        while True:
            try:
                result = steps.send(result)
            except StopIteration as end:
                return end.value

    return send


def _send_recorded(
    call: RecordedCall, send: Callable[[Any], Any], request: Any, read: str, *, stream: bool
) -> Generator[Any, Any, Any]:
    """Send a request and return its response; yields what the client's methods return and takes it back, awaited if
    need be. `read` names the response's method that reads its body.
    """
    token = call.begin_request()
    try:
        while True:
            response = yield send(_request_of(call, request))
            if response.status_code < FIRST_ERROR:
                break
            yield getattr(response, read)()
            if not _is_refused(call, response):
                return _as_unread(response, request, stream=stream)
    except BaseException as error:
        call.on_error(error)
        raise
    finally:
        context.end_recorded(token)
    tap = call.guard.call("tap", _tap, call, response, request, default=None)
    if not stream:
        yield getattr(response, read)()
        _set_length(response, tap)
    return response


def _begin(capture: Capture, request: Any) -> RecordedCall | None:
    if request.method != "POST":
        return None
    content = getattr(request, "_content", None)  # absent where the body is still to be produced
    return capture.outbox.guard.call(
        "begin", begin_call, capture, request.method, str(request.url), request.headers, content, default=None
    )


def _request_of(call: RecordedCall, request: Any) -> Any:
    """Return the request with what is asked for in addition."""
    content = call.guard.call("ask", call.body, default=request.content)
    if content == request.content:
        return request
    headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
    return type(request)(request.method, request.url, headers=headers, content=content, extensions=request.extensions)


def _is_refused(call: RecordedCall, response: Any) -> bool:
    """Say whether to ask again for less."""
    return call.retry(RefusalError(response.status_code, response.text))


def _as_unread(response: Any, request: Any, *, stream: bool) -> Any:
    """Return an error's response, which we have read, as one that the application can still read."""
    if not response.history:
        response.request = request
    if stream:
        module = sys.modules[type(response).__module__.partition(".")[0]]
        response.elapsed = response.elapsed  # httpx2 asks its stream for it
        response.stream = module.ByteStream(response.content)
        response.headers.pop("content-encoding", None)
        del response._content
        response.is_closed = response.is_stream_consumed = False
    return response


def _tap(call: RecordedCall, response: Any, request: Any) -> AnswerTap:
    """Let the answer's bytes pass through a tap."""
    call.on_answer()
    tap = AnswerTap(call, response.headers)
    if not response.history:
        response.request = request
    if hasattr(response, "_content"):  # a hook of the application has read it
        visible = tap.feed(response.content) + tap.end()
        response._content = visible
        return tap
    decoder = response._get_content_decoder()
    response.__dict__.pop("_decoder", None)
    response.headers.pop("content-encoding", None)
    if tap.changes:
        response.headers.pop("content-length", None)
    module = sys.modules[type(response).__module__.partition(".")[0]]
    base = module.AsyncByteStream if isinstance(response.stream, module.AsyncByteStream) else module.SyncByteStream
    is_async = base is module.AsyncByteStream and not isinstance(response.stream, module.SyncByteStream)
    tapped_class = _stream_class(_AsyncTappedStream if is_async else _TappedStream, base)
    response.stream = tapped_class(response.stream, decoder, tap)
    return tap


def _set_length(response: Any, tap: AnswerTap | None) -> None:
    if tap is not None and tap.changes and "transfer-encoding" not in response.headers:
        response.headers["content-length"] = str(len(response.content))


@functools.cache
def _stream_class(behaviour: type, base: type) -> Any:
    return type(behaviour.__name__, (behaviour, base), {})


class _TappedStream:
    """A response's stream, unpacked, whose bytes pass through a tap.

    It is read once, as a connection is, however often it is iterated: openai iterates again behind the last event, and
    the stream of an application's own transport would begin from the start.
    """

    def __init__(self, stream: Any, decoder: Any, tap: AnswerTap) -> None:
        self._stream, self._decoder, self._tap = stream, decoder, tap
        self._is_plain = type(decoder).__name__ == PLAIN
        self._raw: Any = None
        """The one iteration of the stream, from its beginning on."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[bytes]:
        self._raw = iter(self._stream) if self._raw is None else self._raw
        with self._recording_cut_off():
            if self._is_plain:
                feed = self._tap.feed
                for raw in self._raw:
                    if visible := feed(raw):
                        yield visible
            else:
                for raw in self._raw:
                    yield from self._visible_pieces(self._decoder.decode(raw))
            yield from self._rest()

    def _visible_pieces(self, decoded: Any) -> Iterator[bytes]:
        """Pass on what a decoder gave: httpx bytes, httpx2 an iterator, which unpacks no more than is asked for."""
        for piece in (decoded,) if isinstance(decoded, bytes) else decoded:
            if visible := self._tap.feed(piece):
                yield visible

    def _rest(self) -> Iterator[bytes]:
        """Yield what decoder and tap have held back until the end."""
        yield from self._visible_pieces(self._decoder.flush())
        if visible := self._tap.end():
            yield visible

    @contextmanager
    def _recording_cut_off(self) -> Iterator[None]:
        """Record the answer as far as it came, where it is not read to its end."""
        try:
            yield
        except Exception as error:
            self._tap.finish(complete=False, error=error)
            raise
        finally:
            self._tap.finish(complete=False)

    def close(self) -> None:
        self._tap.finish(complete=False)
        self._stream.close()


class _AsyncTappedStream(_TappedStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._raw = aiter(self._stream) if self._raw is None else self._raw
        with self._recording_cut_off():
            if self._is_plain:
                feed = self._tap.feed
                async for raw in self._raw:
                    if visible := feed(raw):
                        yield visible
            else:
                async for raw in self._raw:
                    for visible in self._visible_pieces(self._decoder.decode(raw)):
                        yield visible
            for visible in self._rest():
                yield visible

    async def aclose(self) -> None:
        self._tap.finish(complete=False)
        await self._stream.aclose()
