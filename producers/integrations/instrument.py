"""Record what a process does through the libraries that it has imported, without a change of its code.

    rb = rollbus.init(...)
    patches = rollbus.instrument(rb)          # after the imports; `patches.names` lists what is patched
    with rb.episode(task="refund"):
        ...                                   # every call of a model is a turn, in threads and executors too

A library is patched whole or left as it was. Explicit hooks and wrapped clients go on working, and record once.
"""

import sys
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from contextlib import ExitStack
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rollbus.producers.episode import context
from rollbus.producers.recorder import Recorder

Patch = Callable[[Recorder, ExitStack], None]


@dataclass(slots=True)
class Instrumentation:
    """What `instrument` has patched."""

    failed: dict[str, str] = field(default_factory=dict)
    """Libraries that could not be patched, with the error."""
    _undo: dict[str, ExitStack] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The libraries that are patched."""
        return tuple(self._undo)

    def undo(self) -> None:
        """Leave every library as it was."""
        while self._undo:
            self._undo.popitem()[1].close()


def instrument(recorder: Recorder) -> Instrumentation:
    """Record through every known library that is imported; what cannot be patched is logged, and left as it was."""
    done = Instrumentation()
    for name, patch in PATCHES.items() if recorder.settings.enabled else ():
        if name not in sys.modules:
            continue
        with ExitStack() as stack:
            try:
                patch(recorder, stack)
            except Exception as error:  # a version that is made differently: the stack takes back what was done
                recorder.guard.failed(f"instrument_{name}", error)
                done.failed[name] = repr(error)
            else:
                done._undo[name] = stack.pop_all()
    return done


def _patch_openai(recorder: Recorder, stack: ExitStack) -> None:
    from rollbus.producers.capture.call import Capture
    from rollbus.producers.capture.openai_classes import patch_classes

    capture = Capture(recorder.outbox, recorder.episodes, None, None, recorder.settings.logprobs, True)
    patch_classes(capture, stack)


def _patch_litellm(recorder: Recorder, stack: ExitStack) -> None:
    import litellm

    from rollbus.producers.integrations.litellm import RollbusLogger

    if not any(isinstance(each, RollbusLogger) for each in litellm.callbacks):
        logger = RollbusLogger(recorder)
        litellm.callbacks.append(logger)
        stack.callback(_remove_from_litellm, logger)


def _remove_from_litellm(logger: Any) -> None:
    """Remove a logger from every list: a call copies those of `callbacks` into the lists of its kind."""
    import litellm

    lists = (litellm.callbacks, litellm.input_callback, litellm.success_callback, litellm.failure_callback)
    for callbacks in (*lists, litellm._async_success_callback, litellm._async_failure_callback):
        litellm.logging_callback_manager.remove_callback_from_list_by_object(callbacks, logger, require_self=False)


def _patch_langchain(recorder: Recorder, stack: ExitStack) -> None:
    from langchain_core.tracers import context as tracers

    from rollbus.producers.integrations.langchain import RollbusHandler

    # Every thread and task sees a default; a run that has a handler of this class already gets no second one.
    handler: ContextVar[Any] = ContextVar("rollbus_handler", default=RollbusHandler(recorder))  # noqa: B039
    tracers.register_configure_hook(handler, inheritable=True, handle_class=RollbusHandler)
    stack.callback(tracers._configure_hooks.remove, tracers._configure_hooks[-1])


def _patch_llama_index(recorder: Recorder, stack: ExitStack) -> None:
    from rollbus.producers.integrations.llama_index import install

    stack.callback(install(recorder))


def _patch_adk(recorder: Recorder, stack: ExitStack) -> None:
    from google.adk.runners import Runner

    from rollbus.producers.integrations.adk import RollbusPlugin

    original = Runner.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.plugin_manager.get_plugin("rollbus") is None:
            recorder.guard.call("hook", self.plugin_manager.register_plugin, RollbusPlugin(recorder), default=None)

    stack.callback(setattr, Runner, "__init__", original)
    Runner.__init__ = init  # type: ignore[method-assign]


def _patch_openai_agents(recorder: Recorder, stack: ExitStack) -> None:
    from agents.tracing import add_trace_processor

    from rollbus.producers.integrations.openai_agents import RollbusProcessor

    processor = RollbusProcessor(recorder)
    stack.callback(processor.shutdown)
    add_trace_processor(processor)


def _patch_threads(recorder: Recorder, stack: ExitStack) -> None:
    submit, start = futures.ThreadPoolExecutor.submit, threading.Thread.start

    def submit_bound(self: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        return submit(self, _bound(function), *args, **kwargs)

    def start_bound(self: Any) -> None:
        # A worker of a pool serves many episodes: what is submitted to it is bound instead.
        if getattr(getattr(self, "_target", None), "__module__", "") != "concurrent.futures.thread":
            self.run = _bound(self.run)
        start(self)

    stack.callback(setattr, futures.ThreadPoolExecutor, "submit", submit)
    stack.callback(setattr, threading.Thread, "start", start)
    futures.ThreadPoolExecutor.submit = submit_bound  # type: ignore[method-assign]
    threading.Thread.start = start_bound  # type: ignore[method-assign]


def _bound(function: Any) -> Any:
    """Return the function, in the current episode where there is one; a coroutine function is not called by threads."""
    if context.current_episode() is None:
        return function
    return partial(copy_context().run, function)


PATCHES: Mapping[str, Patch] = {
    "openai": _patch_openai,
    "litellm": _patch_litellm,
    "langchain_core": _patch_langchain,
    "llama_index.core": _patch_llama_index,
    "google.adk.runners": _patch_adk,
    "agents": _patch_openai_agents,
    "threading": _patch_threads,
}
"""By the module whose import shows that the process uses the library."""
