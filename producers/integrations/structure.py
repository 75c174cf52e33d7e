"""Runs, model calls and tool calls of a framework to episodes, function names and events: what all hooks share.

A hook passes on the framework's own ids (any hashable) of what starts and ends. While a model call runs, its episode
and function are the current ones, so the wrapped client beneath records its tokens there. A model call that no wrapped
client saw becomes a turn without tokens (`not_captured`), which gives way to a proxy's record of the same answer.
Each hook class is under `guard_hooks`: what its methods raise is counted, and reaches no framework.
"""

import functools
import inspect
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar, Unpack

from rollbus.producers.episode import context
from rollbus.producers.episode.episode import Episode, ToolFields
from rollbus.producers.episode.functions import current_function
from rollbus.producers.episode.scope import stop_reason_of
from rollbus.producers.recorder import Recorder
from rollbus.producers.turns.turn_record import Exchange

MAX_OPEN = 10_000
"""Starts kept whose end has not come; beyond it the oldest is forgotten."""


@dataclass(slots=True)
class _Open:
    """Something that has started: a run, a model call or a tool call."""

    episode: Episode | None
    name: str = ""
    owned: bool = False
    """Whether the episode is to end with it."""
    tokens: context.CallTokens | None = None
    call: context.ModelCall = field(default_factory=context.ModelCall)
    start_s: float = field(default_factory=time.perf_counter)
    tool: str = ""
    """The name of a tool."""
    fields: ToolFields = field(default_factory=ToolFields)
    root: Hashable = None
    """The outermost run that it is in."""
    child: str = ""
    """The agent whose child episode it is in, unless a tool is between: a graph and its node have one name."""
    thread: str = ""
    """The framework's id of what an outermost run is a part of."""
    paused: bool = False
    """Whether something in it waits, so that another run will go on with its episode."""
    before: "_Open | None" = None
    """What had started under the same key: an agent may get a request again before its own run is over."""


Hooks = TypeVar("Hooks", bound=type)


def guard_hooks(hooks: Hooks) -> Hooks:
    """Guard the methods of a class that a framework calls: another version may call them, or fill what it hands to
    them, differently.
    """
    for name, method in tuple(vars(hooks).items()):
        is_own = inspect.isfunction(method) and method.__module__ == hooks.__module__  # pydantic adds some of its own
        if is_own and not name.startswith("_"):
            setattr(hooks, name, _guard_hook(method))
    return hooks


def _guard_hook(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def call_async(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await self._structure.guard.call_async("hook", method, self, *args, default=None, **kwargs)

        return call_async

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._structure.guard.call("hook", method, self, *args, default=None, **kwargs)

    return call


class Structure:
    """What one hook knows of the runs that are open."""

    def __init__(
        self, recorder: Recorder, hook: str, *, task: str | None = None, child_agents: Collection[str] = ()
    ) -> None:
        """Record into the current episode; outside of one, with `task` given, each outermost run is an episode.

        Runs named in `child_agents` become child episodes, with trajectories of their own.
        """
        self._recorder, self._hook, self._task = recorder, hook, task
        self.guard = recorder.guard
        self._child_agents = frozenset(child_agents)
        self._open: OrderedDict[Hashable, _Open] = OrderedDict()

    def is_open(self, key: Hashable) -> bool:
        """Say whether something has started under this key and not ended."""
        return key in self._open

    def run_started(
        self,
        key: Hashable,
        parent: Hashable | None,
        name: str,
        *,
        is_agent: bool = True,
        enter: bool = False,
        conversation: str | None = None,
        resumes: bool = False,
    ) -> None:
        """A chain, graph, node or agent begins; one that is not an agent never becomes a child episode.

        With `enter`, its episode and name are the current ones from here on, in this very context. `conversation` is
        the framework's id of a thread or session, for an episode that begins with it, or that the run `resumes`.
        """
        episode, around = self._episode_of(parent), self._open.get(parent)
        child, root = ("", key) if around is None else (around.child, around.root)
        is_child = is_agent and name in self._child_agents and name != child
        owned = is_child if episode is not None else self._task is not None
        if owned and resumes and conversation and episode is None:
            episode = self._recorder.start_resumed(conversation, task=self._task or "")
        elif owned:
            task = (episode.task if episode is not None else self._task) or ""
            episode = self._recorder.start(
                task=task, agent=name or None, parent=episode, conversation=conversation or None
            )
        child = name if owned else child
        open_call = _Open(episode, name or self._name_of(parent), owned, root=root, child=child)
        open_call.thread = "" if is_child else conversation or ""
        self._enter(key, open_call) if enter else self._remember(key, open_call)

    def run_ended(self, key: Hashable, error: BaseException | None = None) -> None:
        """It is over; an episode of its own ends with it."""
        self._end_run(self._leave(key), error)

    def run_paused(self, key: Hashable) -> None:
        """It stops for now, such as for a person's answer, and with it the outermost run that it is in."""
        run = self._open.get(key)
        if run is not None and (outermost := self._open.get(run.root)) is not None:
            outermost.paused = True
        self.run_ended(key)

    def all_ended(self, root: Hashable, error: BaseException | None = None) -> None:
        """An outermost run is over, and with it the runs in it whose end the framework has not reported."""
        for key in [key for key, open_call in reversed(self._open.items()) if open_call.root == root]:
            while (inner := self._leave(key)) is not None:
                self._end_run(inner, error)

    def _end_run(self, run: _Open | None, error: BaseException | None) -> None:
        if run is not None and run.episode is not None and run.owned:
            if run.paused and run.thread and error is None:
                self._recorder.pause(run.thread, run.episode)
            else:
                run.episode.end(*stop_reason_of(error))
            run.episode.is_placeholder = True  # in a context that was not left it hides no episode around it

    def model_started(self, key: Hashable, parent: Hashable | None, function: str = "") -> None:
        """A model is about to be called in this very context; `function` is the part of the agent that asks."""
        self._enter(key, _Open(self._episode_of(parent), function or self._name_of(parent)))

    def model_ended(self, key: Hashable, view: Callable[[], Exchange | None] = lambda: None) -> None:
        """It has answered; `view` returns the framework's own view, for where no wrapped client saw the call."""
        open_call = self._leave(key)
        if open_call is None or open_call.episode is None or open_call.call.captured or (exchange := view()) is None:
            return
        self._recorder.counts.add("calls_not_captured")
        exchange.hook = self._hook
        open_call.episode.record(exchange, open_call.name)

    def tool_started(self, key: Hashable, parent: Hashable | None, *, name: str, **fields: Unpack[ToolFields]) -> None:
        """A tool begins."""
        self._enter(key, _Open(self._episode_of(parent), self._name_of(parent), tool=name, fields=fields))

    def describe_tool(self, key: Hashable, **fields: Unpack[ToolFields]) -> None:
        """Say more of a tool that has begun, as far as it is not known."""
        if (open_call := self._open.get(key)) is not None:
            open_call.fields = {**fields, **open_call.fields}

    def tool_ended(self, key: Hashable, **fields: Unpack[ToolFields]) -> None:
        """It has a result or an error."""
        open_call = self._leave(key)
        if open_call is not None and open_call.episode is not None:
            latency_ms = int((time.perf_counter() - open_call.start_s) * 1000)
            tool_fields: ToolFields = {**open_call.fields, **fields, "latency_ms": latency_ms}
            open_call.episode.tool(open_call.tool, **tool_fields)

    def tool_failed(self, key: Hashable, error: BaseException | None) -> None:
        """It has raised; the text is that of an episode that ends so."""
        self.tool_ended(key, error=stop_reason_of(error)[1] or "failed")

    def tool_withdrawn(self, key: Hashable) -> None:
        """It does not run now."""
        self._leave(key)

    def _episode_of(self, parent: Hashable | None) -> Episode | None:
        open_call = self._open.get(parent) if parent is not None else None
        return (
            open_call.episode
            if open_call is not None and open_call.episode is not None
            else self._recorder.current_episode()
        )

    def _name_of(self, parent: Hashable | None) -> str:
        open_call = self._open.get(parent) if parent is not None else None
        return open_call.name if open_call is not None else current_function()

    def _enter(self, key: Hashable, open_call: _Open) -> None:
        if open_call.episode is not None:
            open_call.tokens = context.enter_call(open_call.episode, open_call.name, open_call.call)
        self._remember(key, open_call)

    def _leave(self, key: Hashable) -> _Open | None:
        open_call = self._open.pop(key, None)
        if open_call is None:
            return None
        if open_call.before is not None:
            self._open[key] = open_call.before
        if open_call.tokens is not None:
            context.leave_call(open_call.tokens)
        return open_call

    def _remember(self, key: Hashable, open_call: _Open) -> None:
        open_call.before = self._open.pop(key, None)
        self._open[key] = open_call
        while len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)
            self._recorder.counts.add("hook_starts_forgotten")
