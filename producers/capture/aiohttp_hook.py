"""The calls of models that leave through aiohttp, of all sessions of a process.

A response's reader is given the bytes by the connection's parser; there they pass through the tap, so every way to read
them (`json`, `content.iter_any`, `readline`, …) works as without us.
"""

import functools
from collections.abc import Mapping
from contextlib import ExitStack
from types import ModuleType
from typing import Any

from rollbus.producers.capture.answer_tap import AnswerTap
from rollbus.producers.capture.call import Capture, RecordedCall, RefusalError
from rollbus.producers.capture.endpoints import begin_call
from rollbus.producers.capture.replace_method import replace_method
from rollbus.producers.episode import context

FIRST_ERROR = 400


def patch_aiohttp(module: ModuleType, capture: Capture, stack: ExitStack) -> None:
    """Record the calls of all sessions until the stack is closed."""
    is_on = [True]
    replace_method(module.ClientSession, "_request", functools.partial(_recording, capture=capture, is_on=is_on), stack)
    stack.callback(is_on.clear)


def _recording(original: Any, capture: Capture, is_on: list[bool]) -> Any:
    """Return the method that makes a session's requests, recorded."""

    @functools.wraps(original)
    async def request_recorded(self: Any, method: str, str_or_url: Any, **options: Any) -> Any:
        begin = capture.outbox.guard.call
        call = begin("begin", _begin, capture, self, method, str_or_url, options, default=None) if is_on else None
        if call is None:
            return await original(self, method, str_or_url, **options)
        check = options.pop("raise_for_status", None)
        token = call.begin_request()
        try:
            while True:
                sent_options = call.guard.call("ask", _options_of, call, options, default=options)
                response = await original(self, method, str_or_url, **sent_options, raise_for_status=False)
                if response.status < FIRST_ERROR:
                    break
                error = RefusalError(response.status, (await response.read()).decode(errors="replace"))
                if not call.retry(error):
                    _refill(response, response._body)
                    break
        except BaseException as error:
            call.on_error(error)
            raise
        finally:
            context.end_recorded(token)
        if response.status < FIRST_ERROR:
            call.guard.call("tap", _tap, call, response, default=None)
        await _check_status(response, self._raise_for_status if check is None else check)
        return response

    return request_recorded


def _begin(capture: Capture, session: Any, method: str, url: Any, options: Mapping[str, Any]) -> RecordedCall | None:
    if method.upper() != "POST" or options.get("compress"):
        return None
    data, content = options.get("data"), None
    if options.get("json") is not None:
        content = session._json_serialize(options["json"])
    elif isinstance(data, str | bytes | bytearray):
        content = data
    if isinstance(content, str):
        content = content.encode()
    headers = session._prepare_headers(options.get("headers"))
    address = str(session._build_url(url))
    return begin_call(capture, "POST", address, headers, None if content is None else bytes(content))


def _options_of(call: RecordedCall, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request's options with what is asked for in addition, in the form that the application gave it."""
    if options.get("json") is not None:
        return {**options, "json": call.request}
    body = call.body()
    return {**options, "data": body.decode() if isinstance(options["data"], str) else body}


async def _check_status(response: Any, check: Any) -> None:
    """Do with an error's response what the session or the request says, as `_request` does."""
    if callable(check):
        await check(response)
    elif check:
        response.raise_for_status()


def _tap(call: RecordedCall, response: Any) -> None:
    """Let the answer's bytes pass through a tap."""
    call.on_answer()
    tap, content = AnswerTap(call, response.headers), response.content
    begun = content.read_nowait()
    if content.is_eof():
        _refill(response, tap.feed(begun) + tap.end())
        return
    content.__class__ = _tapped_class(type(content), tap)
    if begun:
        content.feed_data(begun)


def _refill(response: Any, data: bytes) -> None:
    """Let a response whose body has come be read again."""
    old = response.content
    content = type(old)(old._protocol, old._low_water, loop=old._loop)
    if data:
        content.feed_data(data)
    content.feed_eof()
    response.content = content


def _tapped_class(base: type, tap: AnswerTap) -> type:
    """Return the class of one response's reader: its objects have no room for more than they hold."""

    def feed_data(self: Any, data: bytes, *rest: Any) -> Any:
        visible = tap.feed(data)
        return base.feed_data(self, visible) if visible else False  # type: ignore[attr-defined]

    def feed_eof(self: Any) -> None:
        if visible := tap.end():
            base.feed_data(self, visible)  # type: ignore[attr-defined]
        base.feed_eof(self)  # type: ignore[attr-defined]

    def set_exception(self: Any, error: BaseException, *rest: Any) -> None:
        tap.finish(complete=False, error=error)
        base.set_exception(self, error, *rest)  # type: ignore[attr-defined]

    methods = {"feed_data": feed_data, "feed_eof": feed_eof, "set_exception": set_exception}
    return type(base.__name__, (base,), {"__slots__": (), **methods})
