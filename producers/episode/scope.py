"""`with`, `async with` and decorator forms of an episode.

The episode is the current one inside; an exception that leaves the block ends it with its reason and goes on its way.
That of a decorated generator lasts until the generator has ended, and is the current one while the generator runs, not
while its reader does.
"""

import asyncio
import contextlib
import functools
import inspect
import threading
from collections.abc import Callable
from contextvars import Token
from types import TracebackType
from typing import Any, TypeVar

from rollbus.producers.episode import context
from rollbus.producers.episode.episode import Episode
from rollbus.schemas.records.events import StopReason

Function = TypeVar("Function", bound=Callable[..., Any])


class EpisodeScope:
    """Opens an episode on entering, ends it on leaving; as a decorator, one episode per call."""

    def __init__(
        self, open_episode: Callable[[str | None], Episode], after_end: Callable[[], object] | None = None
    ) -> None:
        """`open_episode` is given the decorated function's name, which is the task where none was given; `after_end`
        is called once the episode has ended, in a thread where the block is asynchronous: it may block.
        """
        self._open, self._after_end = open_episode, after_end
        self._entered: list[tuple[Episode, Token[Episode | None]]] = []

    def __enter__(self) -> Episode:
        """Open the episode and make it the current one."""
        return self._enter(None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the episode."""
        self._leave(error)
        if self._after_end is not None:
            self._after_end()

    async def __aenter__(self) -> Episode:
        """Open the episode and make it the current one."""
        return self._enter(None)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the episode."""
        self._leave(error)
        if self._after_end is not None:
            await _call_in_thread(self._after_end)

    def __call__(self, function: Function) -> Function:
        """Run each call of the function as an episode."""
        name = getattr(function, "__name__", None)
        if inspect.isgeneratorfunction(function):
            return self._generator(function, name)  # type: ignore[return-value]
        if inspect.isasyncgenfunction(function):
            return self._async_generator(function, name)  # type: ignore[return-value]

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                async with self._new_scope(name):
                    return await function(*args, **kwargs)

            return run_async  # type: ignore[return-value]

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self._new_scope(name):
                return function(*args, **kwargs)

        return run  # type: ignore[return-value]

    def _new_scope(self, name: str | None) -> "EpisodeScope":
        """Return the scope of one call of the decorated function."""
        return EpisodeScope(lambda _: self._open(name), self._after_end)

    def _generator(self, function: Callable[..., Any], name: str | None) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            generator = function(*args, **kwargs)
            episode, step = self._open(name), functools.partial(generator.send, None)
            while True:
                token = context.enter(episode)
                try:
                    item = step()
                except BaseException as error:
                    self._scope_around(episode, token).__exit__(type(error), error, None)
                    if isinstance(error, StopIteration):
                        return error.value
                    raise
                context.leave(token)
                try:
                    step = functools.partial(generator.send, (yield item))
                except BaseException as error:  # by the reader, who may also have left
                    step = functools.partial(generator.throw, error)

        return run

    def _async_generator(self, function: Callable[..., Any], name: str | None) -> Callable[..., Any]:
        @functools.wraps(function)
        async def run(*args: Any, **kwargs: Any) -> Any:
            generator = function(*args, **kwargs)
            episode, step = self._open(name), functools.partial(generator.asend, None)
            while True:
                token = context.enter(episode)
                try:
                    item = await step()
                except BaseException as error:
                    await self._scope_around(episode, token).__aexit__(type(error), error, None)
                    if isinstance(error, StopAsyncIteration):
                        return
                    raise
                context.leave(token)
                try:
                    step = functools.partial(generator.asend, (yield item))
                except BaseException as error:
                    step = functools.partial(generator.athrow, error)

        return run

    def _enter(self, name: str | None) -> Episode:
        episode = self._open(name)
        self._entered.append((episode, context.enter(episode)))
        return episode

    def _scope_around(self, episode: Episode, token: "Token[Episode | None]") -> "EpisodeScope":
        """Return the scope of an episode that is the current one already."""
        scope = EpisodeScope(self._open, self._after_end)
        scope._entered.append((episode, token))
        return scope

    def _leave(self, error: BaseException | None) -> None:
        if not self._entered:
            return
        # The block of another thread or task may have entered the same scope since: ours has the current episode.
        ours = [entry for entry in tuple(self._entered) if entry[0] is context.current_episode()] or self._entered
        episode, token = last = ours[-1]
        self._entered.remove(last)
        context.leave(token)
        if not episode.ended:
            episode.end(*stop_reason_of(error))


async def _call_in_thread(function: Callable[[], object]) -> None:
    """Call it in a thread of its own: those of the loop's executor may be busy for long, or gone."""
    loop, has_returned = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        try:
            function()
        finally:
            with contextlib.suppress(RuntimeError):  # the caller has stopped waiting, and the loop is closed
                loop.call_soon_threadsafe(has_returned.set)

    try:
        threading.Thread(target=run, name="rollbus-flush", daemon=True).start()
    except RuntimeError:  # no thread can be started any more
        return
    await has_returned.wait()


def stop_reason_of(error: BaseException | None) -> tuple[StopReason, str | None]:
    """Return why a run is over, and the text of what ended it."""
    if error is None or isinstance(error, GeneratorExit | StopIteration | StopAsyncIteration):
        return "completed", None
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # an exception whose text raises
        text = type(error).__name__
    return ("timeout" if isinstance(error, TimeoutError) else "error"), text
