"""Wrap an OpenAI client object: the same type on the same connections, with its three APIs of text recorded.

Works on the object, never on the transport, and imports nothing of the client's package, so its version does not
matter here. The wrapped client is an instance of a subclass made for it; `create` and `parse` of its completions are
replaced (of `completions` and `responses` too), through which `stream`, `with_raw_response`,
`with_streaming_response` and `with_options` go by themselves.
"""

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from rollbus.producers.capture.call import Capture, RecordedCall
from rollbus.producers.capture.chat import CHAT
from rollbus.producers.capture.completions import COMPLETIONS
from rollbus.producers.capture.responses import RESPONSES
from rollbus.producers.capture.surface import Surface
from rollbus.producers.episode import context

Client = TypeVar("Client")
RAW_HEADER = "x-stainless-raw-response"
"""How the client asks itself for a raw response: `true`, or `stream` for one whose body is not read yet."""
METHODS = ("create", "parse")
RECORDED_BY = "_rollbus_recorder"
_SURFACES: Mapping[str, Surface] = {"completions": COMPLETIONS, "responses": RESPONSES}
"""Resources that are recorded in addition to `chat.completions`, by their names on the client."""


def wrap_client(client: Client, options: Capture) -> Client:
    """Return a recorded twin of the client; raises TypeError where its `chat.completions.create` cannot be recorded."""
    capture = replace(options, server=str(getattr(client, "base_url", "")), refusing={})
    capture.outbox.keep_secret(getattr(client, "api_key", None))
    twin = object.__new__(_recorded_class(type(client), capture))
    known = weakref.ref(twin)
    capture.key = lambda: getattr(known(), "api_key", None)
    twin.__dict__.update(
        {name: value for name, value in vars(client).items() if getattr(value, "_client", None) is not client}
    )
    twin.__dict__["chat"] = _recorded_chat(client.chat, twin, capture)  # type: ignore[attr-defined]
    for name, surface in _SURFACES.items():
        if (resource := vars(client).get(name)) is not None:  # made already, as clients before 1.70 make all of them
            own = capture.outbox.guard.call("wrap", type(resource), twin, default=resource)
            _keep_patches(own, resource)
            twin.__dict__[name] = _recorded_resource(own, capture, surface)
    if getattr(twin.chat.completions.create, RECORDED_BY, None) is not capture.outbox:  # type: ignore[attr-defined]
        raise TypeError(f"{type(client).__name__} makes its calls elsewhere: wrap the OpenAI client that it is made of")
    return twin


def _recorded_class(original: type[Client], capture: Capture) -> type[Client]:
    """Return a subclass whose copies are recorded too, and whose `beta.chat` is."""

    def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        # The copy is made by the original class: our subclass has no constructor of its own.
        plain = object.__new__(original)
        plain.__dict__.update(vars(self))
        copied = original.copy(plain, *args, **kwargs)  # type: ignore[attr-defined]
        return capture.outbox.guard.call("wrap", wrap_client, copied, capture, default=copied)

    names: dict[str, Any] = {"__module__": original.__module__, "__qualname__": original.__qualname__}
    if hasattr(original, "copy"):
        names |= {"copy": copy, "with_options": copy}
    for name, surface in _SURFACES.items():
        made = inspect.getattr_static(original, name, None)
        if isinstance(made, functools.cached_property):
            names[name] = _recorded_property(made.func, capture, surface)
            names[name].__set_name__(None, name)
    if hasattr(original, "beta"):
        names["beta"] = functools.cached_property(lambda self: _recorded_beta(original, self, capture))
        names["beta"].__set_name__(None, "beta")
    return type(original.__name__, (original,), names)


def _recorded_property(
    make: Callable[[Any], Any], capture: Capture, surface: Surface
) -> "functools.cached_property[Any]":
    return functools.cached_property(lambda self: _recorded_resource(make(self), capture, surface))


def _recorded_resource(resource: Any, capture: Capture, surface: Surface) -> Any:
    capture.outbox.guard.call("wrap", _record_methods, resource, capture, surface, default=None)
    return resource


def _recorded_beta(original: Any, twin: Any, capture: Capture) -> Any:
    beta = inspect.getattr_static(original, "beta").func(twin)
    chat = getattr(beta, "chat", None)
    if chat is not None:
        _recorded_resource(chat.completions, capture, CHAT)
    return beta


def _recorded_chat(chat: Any, twin: Any, capture: Capture) -> Any:
    try:
        own = type(chat)(twin)
    except TypeError:  # not a resource of the OpenAI package: a fake of the host's
        own = object.__new__(type(chat))
        own.__dict__.update(vars(chat))
    completions = own.completions
    if completions is getattr(chat, "completions", None):
        completions = object.__new__(type(completions))
        completions.__dict__.update(vars(chat.completions))
        own.completions = completions
    else:
        _keep_patches(completions, chat.completions)
    _record_methods(completions, capture, CHAT)
    return own


def _keep_patches(own: Any, given: Any) -> None:
    """Call what another tool, or another recorder, has put in place of a method of the given resource."""
    vars(own).update({name: vars(given)[name] for name in METHODS if name in vars(given)})


def _record_methods(completions: Any, capture: Capture, surface: Surface) -> None:
    for name in METHODS:
        method: Any = getattr(completions, name, None)
        if getattr(method, RECORDED_BY, None) is capture.outbox:  # before: the options of the last time hold
            inner: Any = method.__wrapped__
            method = inner.__get__(completions) if inspect.ismethod(method) else inner
        if method is not None:
            recorded = recorded_method(method, lambda _: capture, surface)
            setattr(recorded, RECORDED_BY, capture.outbox)
            setattr(completions, name, recorded)
    if not hasattr(completions, "create"):
        raise TypeError(f"{type(completions).__name__} has no method create")


def recorded_method(
    method: Callable[..., Any], capture_of: Callable[[tuple[Any, ...]], Capture | None], surface: Surface
) -> Callable[..., Any]:
    """Return the method, recorded as its positional arguments say: of a class's, the first is the resource."""
    if inspect.iscoroutinefunction(inspect.unwrap(method)):

        @functools.wraps(method)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            capture = capture_of(args)
            call = None if capture is None else capture.begin(kwargs, surface)
            if call is None:
                return await method(*args, **kwargs)
            while True:
                token = call.begin_request()
                try:
                    result = await method(*args, **call.kwargs)
                except BaseException as error:
                    if not call.retry(error):
                        raise
                else:
                    return _observe(call, result, kwargs)
                finally:
                    context.end_recorded(token)

        return call_async

    @functools.wraps(method)
    def call_sync(*args: Any, **kwargs: Any) -> Any:
        capture = capture_of(args)
        call = None if capture is None else capture.begin(kwargs, surface)
        if call is None:
            return method(*args, **kwargs)
        while True:
            token = call.begin_request()
            try:
                result = method(*args, **call.kwargs)
            except BaseException as error:
                if not call.retry(error):
                    raise
            else:
                return _observe(call, result, kwargs)
            finally:
                context.end_recorded(token)

    return call_sync


def _observe(call: RecordedCall, result: Any, kwargs: dict[str, Any]) -> Any:
    """Record what a call returned, and return the same object."""
    call.on_answer()
    raw = _raw_mode(kwargs) if "extra_headers" in kwargs else None
    if raw is None:
        return _observe_value(call, result, kwargs)
    is_async = inspect.iscoroutinefunction(getattr(result, "parse", None))
    if is_async or raw == "stream" or kwargs.get("stream") is True:
        _observe_parse(call, result, call.original if is_async else kwargs, is_async=is_async)
    else:
        _record_parsed(call, result)
    return result


def _record_parsed(call: RecordedCall, response: Any) -> None:
    """Record a response that is parsed once and kept: the application's own `parse()` returns, or raises, the same."""
    try:
        answer = response.parse()
    except Exception as error:  # a body that was cut, or that is no JSON
        call.on_error(error)
    else:
        call.record_answer(answer)


def _observe_value(call: RecordedCall, value: Any, kwargs: Mapping[str, Any]) -> Any:
    if kwargs.get("stream") is True:
        return call.streaming(value)
    call.record_answer(value)
    return value


def _observe_parse(call: RecordedCall, response: Any, kwargs: Mapping[str, Any], *, is_async: bool) -> None:
    """Record when the application parses the response: reading its body is the application's to do."""
    parse, unparsed = response.parse, call.unparsed(response)

    @functools.wraps(parse)
    def parse_sync(*args: Any, **options: Any) -> Any:
        unparsed.detach()
        try:
            value = parse(*args, **options)
        except BaseException as error:
            call.on_error(error)
            raise
        return _observe_value(call, value, kwargs)

    @functools.wraps(parse)
    async def parse_async(*args: Any, **options: Any) -> Any:
        unparsed.detach()
        try:
            value = await parse(*args, **options)
        except BaseException as error:
            call.on_error(error)
            raise
        return _observe_value(call, value, kwargs)

    response.parse = parse_async if is_async else parse_sync


def _raw_mode(kwargs: dict[str, Any]) -> str | None:
    headers = kwargs.get("extra_headers") or {}
    for name, value in headers.items():
        if str(name).lower() == RAW_HEADER:
            return str(value)
    return None
