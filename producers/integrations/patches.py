"""How each library is patched, and taken back: one function per library, which leaves its undoing on a stack."""

import sys
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent import futures
from contextlib import ExitStack
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, NamedTuple, TypedDict

from rollbus.producers.capture.replace_method import replace_method
from rollbus.producers.episode import context
from rollbus.producers.recorder import Recorder

_POOLS = ("concurrent.futures.thread", "multiprocessing.pool")
"""Modules whose threads serve many episodes: what is submitted to them is bound in their place."""


class HookOptions(TypedDict):
    """What every framework's hook takes, in addition to the recorder."""

    task: str | None
    child_agents: Collection[str]


@dataclass(frozen=True, slots=True)
class PatchOptions:
    """What `instrument` was called with."""

    recorder: Recorder
    task: str | None = None
    """Of a framework's run, or else a call, outside of every episode."""
    child_agents: Collection[str] = ()
    function: Callable[[], str] | None = None
    """Of each call of a model, at the call."""

    @property
    def for_hooks(self) -> HookOptions:
        """The arguments of every framework's hook, in addition to the recorder."""
        return {"task": self.task, "child_agents": self.child_agents}


def _patch_http(name: str, options: PatchOptions, stack: ExitStack) -> None:
    from rollbus.producers.capture.aiohttp_hook import patch_aiohttp
    from rollbus.producers.capture.call import Capture
    from rollbus.producers.capture.httpx_hook import patch_httpx

    recorder = options.recorder
    capture = Capture(
        recorder.outbox,
        recorder.episodes,
        episode=None,
        function=options.function,
        mode=recorder.settings.logprobs,
        hide_injected=True,
        hook=name,
    )
    patch = patch_aiohttp if name == "aiohttp" else patch_httpx
    patch(sys.modules[name], capture, stack)


def _patch_retries(name: str, options: PatchOptions, stack: ExitStack) -> None:
    from rollbus.producers.capture.openai_client import patch_retries

    patch_retries(sys.modules[name], stack)


def _patch_litellm(options: PatchOptions, stack: ExitStack) -> None:
    import litellm

    from rollbus.producers.integrations.litellm import RollbusLogger

    loggers = [callback for callback in litellm.callbacks if isinstance(callback, RollbusLogger)]
    if not any(logger.recorder is options.recorder for logger in loggers):
        logger = RollbusLogger(options.recorder)
        litellm.callbacks.append(logger)
        stack.callback(_remove_from_litellm, logger)


def _remove_from_litellm(logger: Any) -> None:
    """Remove a logger from every list: a call copies those of `callbacks` into the lists of its kind."""
    import litellm

    lists = (litellm.callbacks, litellm.input_callback, litellm.success_callback, litellm.failure_callback)
    for callbacks in (*lists, litellm._async_success_callback, litellm._async_failure_callback):
        litellm.logging_callback_manager.remove_callback_from_list_by_object(callbacks, logger, require_self=False)


def _patch_langchain(options: PatchOptions, stack: ExitStack) -> None:
    from langchain_core.tracers import context as tracers

    from rollbus.producers.integrations.langchain import RollbusHandler, handler_class_of

    # Every thread and task sees a default; a run that has a handler of this recorder already gets no second one.
    handler = RollbusHandler(options.recorder, **options.for_hooks)
    variable: ContextVar[Any] = ContextVar("rollbus_handler", default=handler)
    tracers.register_configure_hook(variable, inheritable=True, handle_class=handler_class_of(options.recorder))
    stack.callback(tracers._configure_hooks.remove, tracers._configure_hooks[-1])


def _patch_llama_index(options: PatchOptions, stack: ExitStack) -> None:
    from rollbus.producers.integrations.llama_index import install

    stack.callback(install(options.recorder, **options.for_hooks))


def _patch_adk(options: PatchOptions, stack: ExitStack) -> None:
    from google.adk.runners import Runner

    from rollbus.producers.integrations.adk import RollbusPlugin

    guard = options.recorder.guard

    def register(runner: Any) -> None:
        plugins = runner.plugin_manager
        rollbus_plugins = [plugin for plugin in plugins.plugins if isinstance(plugin, RollbusPlugin)]
        if not any(plugin.recorder is options.recorder for plugin in rollbus_plugins):
            name = f"rollbus-{len(rollbus_plugins) + 1}" if rollbus_plugins else "rollbus"
            plugins.register_plugin(RollbusPlugin(options.recorder, name=name, **options.for_hooks))

    _call_after_init(Runner, lambda runner: guard.call("hook", register, runner, default=None), stack)


def _patch_openai_agents(options: PatchOptions, stack: ExitStack) -> None:
    from agents.tool_context import ToolContext
    from agents.tracing import add_trace_processor

    from rollbus.producers.integrations.openai_agents import RollbusProcessor

    processor = RollbusProcessor(options.recorder, **options.for_hooks)
    stack.callback(processor.shutdown)
    _call_after_init(ToolContext, processor.on_tool_context, stack)
    add_trace_processor(processor)


def _patch_opentelemetry(options: PatchOptions, stack: ExitStack) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    from rollbus.producers.integrations.spans import RollbusSpanProcessor

    processor, guard = RollbusSpanProcessor(options.recorder, **options.for_hooks), options.recorder.guard
    provider = trace.get_tracer_provider()
    provider = getattr(provider, "provider", provider)  # Logfire's is around one of the SDK's
    if isinstance(provider, TracerProvider):
        provider.add_span_processor(processor)
    _call_after_init(
        TracerProvider, lambda made: guard.call("hook", made.add_span_processor, processor, default=None), stack
    )
    stack.callback(processor.end)
    processor.begin()


def _call_after_init(cls: Any, hook: Callable[[Any], object], stack: ExitStack) -> None:
    """Call a hook with every object of a class that is made until the stack is closed."""

    def make(original: Any) -> Any:
        @wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            hook(self)

        return init

    replace_method(cls, "__init__", make, stack)


def _patch_threads(options: PatchOptions, stack: ExitStack) -> None:
    replace_method(futures.ThreadPoolExecutor, "submit", _binding_submit, stack)
    replace_method(threading.Thread, "start", _binding_start, stack)


def _binding_submit(submit: Callable[..., Any]) -> Callable[..., Any]:
    """Return an executor's method that is given a function, which runs in the current episode then."""

    @wraps(submit)
    def submit_bound(self: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        return submit(self, _bound(function), *args, **kwargs)

    return submit_bound


def _binding_start(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that starts a thread, which runs in the current episode then."""

    @wraps(start)
    def start_bound(self: Any) -> None:
        if getattr(getattr(self, "_target", None), "__module__", "") not in _POOLS:
            self.run = _bound(self.run)
        start(self)

    return start_bound


def _patch_thread_pools(options: PatchOptions, stack: ExitStack) -> None:
    from multiprocessing.pool import ThreadPool

    for name in ("apply_async", "_map_async", "imap", "imap_unordered"):
        replace_method(ThreadPool, name, _binding, stack)  # `Pool`, whose method it is, is for processes too


def _binding(submit: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a pool that is given a function, which runs in the current episode then."""

    @wraps(submit)
    def submit_bound(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        return submit(self, _bound(func), *args, **kwargs)

    return submit_bound


def _bound(function: Any) -> Any:
    """Return the function, in the current episode where there is one; a coroutine function is not called by threads."""
    if context.current_episode() is None:
        return function
    return partial(_call_in_copy, copy_context(), function)


def _call_in_copy(outer: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call the function in a copy of a context: a pool calls one function in several threads at once."""
    return outer.copy().run(function, *args, **kwargs)


class Library(NamedTuple):
    """A library that can be patched."""

    distribution: str
    """Its name on PyPI; empty for Python's own."""
    newest: str
    """The newest version that the tests ran with."""
    patch: Callable[[PatchOptions, ExitStack], None]


LIBRARIES: Mapping[str, Library] = {
    "httpx": Library("httpx", "0.28", partial(_patch_http, "httpx")),
    "httpx2": Library("httpx2", "2.16", partial(_patch_http, "httpx2")),
    "aiohttp": Library("aiohttp", "3.14", partial(_patch_http, "aiohttp")),
    "openai": Library("openai", "3.57", partial(_patch_retries, "openai")),
    "anthropic": Library("anthropic", "2.11", partial(_patch_retries, "anthropic")),
    "litellm": Library("litellm", "1.110", _patch_litellm),
    "langchain_core": Library("langchain-core", "1.8", _patch_langchain),
    "llama_index.core": Library("llama-index-core", "0.14", _patch_llama_index),
    "google.adk.runners": Library("google-adk", "2.13", _patch_adk),
    "agents": Library("openai-agents", "0.24", _patch_openai_agents),
    "opentelemetry.sdk.trace": Library("opentelemetry-sdk", "1.45", _patch_opentelemetry),
    "threading": Library("", "", _patch_threads),
    "multiprocessing.pool": Library("", "", _patch_thread_pools),
}
"""By the module whose import shows that the program uses the library."""
