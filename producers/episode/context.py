"""Which episode, and which model call of a framework, the running code belongs to.

Context variables follow tasks and `asyncio.to_thread` by themselves; threads and executors need `bind`.
"""

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token, copy_context
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from rollbus.producers.episode.episode import Episode
from rollbus.producers.episode.functions import FUNCTION

P = ParamSpec("P")
R = TypeVar("R")

_episode: ContextVar[Episode | None] = ContextVar("rollbus_episode", default=None)


@dataclass(slots=True)
class ModelCall:
    """A framework's call of a model, seen from above by its hook."""

    captured: bool = False
    """Whether a wrapped client beneath saw it."""
    above: "ModelCall | None" = None
    """The call of another framework that this one serves."""
    on_captured: Callable[[], None] | None = None
    watched: bool = False
    """Whether it was begun without a block."""

    def mark_captured(self) -> None:
        """Say that its tokens are recorded, to the frameworks above too."""
        call: ModelCall | None = self
        while call is not None and not call.captured:
            call.captured = True
            on_captured = call.on_captured  # another thread may take it away
            if on_captured is not None:
                on_captured()
            call = call.above


_recorded_by: ContextVar[object] = ContextVar("rollbus_recorded_by", default=None)
"""The outbox that the client's call which runs now is recorded into."""
recorded_by, begin_recorded = _recorded_by.get, _recorded_by.set


@dataclass(slots=True)
class RequestTries:
    """The requests that a client makes for one call of the application."""

    failed: Any = None
    """The last one that had no answer."""


_attempts: ContextVar[RequestTries | None] = ContextVar("rollbus_attempts", default=None)
current_attempts = _attempts.get


@contextmanager
def attempts() -> Iterator[None]:
    """Take the requests inside as one call: it has failed if the block has."""
    tries = RequestTries()
    token = _attempts.set(tries)
    try:
        yield
    except BaseException as error:
        if tries.failed is not None:
            tries.failed.fail(error)
        raise
    finally:
        with suppress(ValueError):
            _attempts.reset(token)


_model_call: ContextVar[ModelCall | None] = ContextVar("rollbus_model_call", default=None)
CallTokens = tuple[Token[Episode | None], Token[str], Token[ModelCall | None]]


current_episode = _episode.get
"""Return the innermost episode of the running code; nothing lies between, as every call of a model asks."""


def enter(episode: Episode) -> Token[Episode | None]:
    """Make an episode the current one."""
    return _episode.set(episode)


def leave(token: Token[Episode | None]) -> None:
    """Undo `enter`; does nothing where the block is left in another context than it was entered in."""
    try:
        _episode.reset(token)
    except ValueError:  # an async generator that was closed by another task
        return


def end_recorded(token: Token[object]) -> None:
    """Undo `begin_recorded`; does nothing where the call ends in another context than it began in."""
    with suppress(ValueError):
        _recorded_by.reset(token)


def enter_call(episode: Episode, name: str, call: ModelCall) -> CallTokens:
    """Make an episode, a function and a hook's call the current ones."""
    call.above = _call_around()
    return _episode.set(episode), FUNCTION.set(name), _model_call.set(call)


def _call_around() -> ModelCall | None:
    """Return the call whose block this is; a watched one has none, and stays behind here when it is over."""
    call = _model_call.get()
    return call.above if call is not None and call.watched else call


def leave_call(tokens: CallTokens) -> None:
    """Undo `enter_call`, as far as this context is the one that entered."""
    with suppress(ValueError):
        _episode.reset(tokens[0])
        FUNCTION.reset(tokens[1])
        _model_call.reset(tokens[2])


def mark_captured() -> None:
    """Let the framework's hook above, if there is one, know that a wrapped client records this call."""
    if (call := _model_call.get()) is not None:
        call.mark_captured()


def watch_call(on_captured: Callable[[], None]) -> ModelCall:
    """Watch the model call that begins here, without a block around it; `on_captured` is called if a wrapped client
    records it.
    """
    call = ModelCall(above=_call_around(), on_captured=on_captured, watched=True)
    _model_call.set(call)
    return call


def bind(call: Callable[P, R]) -> Callable[P, R]:
    """Return the function bound to the current episode, to hand to a thread, an executor or another loop; may be called
    many times at once.
    """
    context = copy_context()

    if inspect.iscoroutinefunction(call):

        @functools.wraps(call)
        async def bound_async(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.create_task(call(*args, **kwargs), context=context.copy())

        return bound_async  # type: ignore[return-value]

    @functools.wraps(call)
    def bound(*args: P.args, **kwargs: P.kwargs) -> R:
        return context.copy().run(call, *args, **kwargs)

    return bound
