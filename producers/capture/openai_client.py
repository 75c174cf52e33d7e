"""Wrap an OpenAI client object: the same type on the same connections, whose calls are recorded as they leave.

Only its HTTP client is another: `stream`, `parse`, `with_raw_response`, `with_options` and what other tools have put on
the classes go through it by themselves. The requests that a client makes for one call are one call.
"""

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from types import ModuleType
from typing import Any, TypeVar

from rollbus.producers.capture.call import Capture
from rollbus.producers.capture.httpx_hook import divert, divert_while_open, recorded_twin
from rollbus.producers.capture.replace_method import replace_method
from rollbus.producers.episode import context

Client = TypeVar("Client")
METHODS = ("create", "parse")


def wrap_client(client: Client, capture: Capture) -> Client:
    """Return a recorded twin of the client; raises TypeError where it makes its calls through no client of httpx."""
    http = getattr(client, "_client", None)
    if http is None or not callable(getattr(client, "request", None)):
        raise TypeError(f"{type(client).__name__} makes its calls elsewhere: wrap the OpenAI client that it is made of")
    capture.outbox.keep_secret(getattr(client, "api_key", None))
    twin = object.__new__(type(client))
    twin.__dict__.update(vars(client))
    twin.__dict__["_client"] = recorded_twin(http, capture)
    for name, value in vars(client).items():
        if getattr(value, "_client", None) is client:  # a part of it that was made already
            twin.__dict__[name] = type(value)(twin)
            _keep_patches(value, twin.__dict__[name], twin.__dict__["_client"])
    request = type(client).request  # type: ignore[attr-defined]
    twin.__dict__["request"] = functools.partial(as_one_call(request), twin)
    return twin


def _keep_patches(part: Any, twin_part: Any, twin_http: Any) -> None:
    """Call what another tool has put in place of a method of the client, whose calls leave through the twin then."""
    for name, value in vars(part).items():
        if name in METHODS:
            vars(twin_part)[name] = _through(value, twin_http)
            divert(twin_http.original)
        elif getattr(value, "_client", None) is part._client:
            _keep_patches(value, getattr(twin_part, name), twin_http)


def _through(method: Callable[..., Any], twin_http: Any) -> Callable[..., Any]:
    """Return the method, whose requests are recorded."""

    async def finish(awaitable: Any) -> Any:
        with divert_while_open(twin_http):
            return await awaitable

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with divert_while_open(twin_http):
            result = method(*args, **kwargs)
        return finish(result) if inspect.isawaitable(result) else result

    return call


def patch_retries(module: ModuleType, stack: ExitStack) -> None:
    """Take the requests of one call as one, for all clients of a package that is made like OpenAI's."""
    base = module._base_client
    for cls in (base.SyncAPIClient, base.AsyncAPIClient):
        replace_method(cls, "request", as_one_call, stack)


def as_one_call(request: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that makes a client's requests for a call: those that failed before one that did not are none
    of their own.
    """
    if inspect.iscoroutinefunction(inspect.unwrap(request)):

        @functools.wraps(request)
        async def request_async(*args: Any, **kwargs: Any) -> Any:
            with context.attempts():
                return await request(*args, **kwargs)

        return request_async

    @functools.wraps(request)
    def request_sync(*args: Any, **kwargs: Any) -> Any:
        with context.attempts():
            return request(*args, **kwargs)

    return request_sync
