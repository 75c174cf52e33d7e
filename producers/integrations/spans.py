"""What frameworks say of themselves in OpenTelemetry's spans: agents, tools, and calls of a model that no client saw.

    trace.set_tracer_provider(TracerProvider())   # the application's own, or that of its tracing tool
    rollbus.instrument(rb)
    with rb.episode(task="stock"):
        keeper.run_sync("How many bolts?")        # an agent of pydantic-ai, AutoGen, Strands, …

This module makes no episode current. At each call it asks OpenTelemetry for the current span instead. So a span may get
its attributes late, as with Strands, and may end in another task or thread than it began in.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from rollbus.producers.episode.episode import Episode
from rollbus.producers.episode.functions import AGENT_SOURCES, current_function
from rollbus.producers.integrations.structure import MAX_OPEN
from rollbus.producers.recorder import Recorder
from rollbus.producers.turns.turn_record import NOT_CAPTURED, Exchange

HOOK = "opentelemetry"
HOOKED_SCOPES = ("langchain", "langgraph", "llamaindex", "openaiagents", "googleadk", "litellm", "gcp.vertex.agent")
"""Ends of the names of instrumentations whose framework has a hook of ours, which reports the same."""
UNSEEN_SCOPES = ("langfuse-sdk",)
"""Instrumentations whose span of a call is not the current one in it: it cannot say whether a client saw the call."""
NS_IN_MS = 1_000_000


@dataclass(slots=True, eq=False)
class OpenSpan:
    """A span that has not ended."""

    span: ReadableSpan
    parent: "OpenSpan | None"
    around: Episode | None
    """The episode that it began in."""
    run: Episode | None = None
    """The episode that is the run of this agent."""
    is_opening: bool = False
    captured: bool = False
    """Whether a client has recorded a call of a model within it."""
    inner_tool: Any = None
    """The same use of a tool as an inner instrumentation reported it, with what the outer one may lack."""

    def ancestry(self) -> Iterator["OpenSpan"]:
        """Yield the span, and those around it outwards."""
        open_span: OpenSpan | None = self
        while open_span is not None:
            yield open_span
            open_span = open_span.parent


class RollbusSpanProcessor(SpanProcessor):
    """Reports to the recorder what the spans of a process say; one serves any number of tracer providers."""

    def __init__(self, recorder: Recorder, *, task: str | None = None, child_agents: Collection[str] = ()) -> None:
        """Record into the current episode; with `task`, an outermost agent without one is an episode of its own.

        Agents named in `child_agents` become child episodes.
        """
        from rollbus.producers.imports.formats import spans as span_formats
        from rollbus.producers.imports.formats import trace as trace_formats  # a part that may be left out

        self._recorder, self._task, self._child_agents = recorder, task, frozenset(child_agents)
        self._guard, self._formats, self._foreign = recorder.guard, span_formats, trace_formats
        self._open: OrderedDict[int, OpenSpan] = OrderedDict()
        self._lock = threading.RLock()
        """Held while an agent's episode is opened: calls in it may begin side by side."""
        self._is_on = False

    def begin(self) -> None:
        """Take part in what the recorder records."""
        self._is_on, self._recorder.episodes.spans = True, self
        AGENT_SOURCES.append(self.current_agent)

    def end(self) -> None:
        """Report no more; OpenTelemetry has no way to take a processor away."""
        self._is_on, self._recorder.episodes.spans = False, None
        AGENT_SOURCES.remove(self.current_agent)
        self._open.clear()

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        """Remember the span, which may not say yet what it is."""
        if self._is_on:
            self._guard.call("hook", self._remember, span, default=None)

    def on_end(self, span: ReadableSpan) -> None:
        """Report the span as a run, a tool or a call, if it was one."""
        open_span = self._open.pop(span.context.span_id, None)
        if open_span is not None and self._is_on:
            self._guard.call("hook", self._report, open_span, default=None)

    # What the recorder asks

    def current_agent(self) -> str:
        """Return the name of the innermost agent that the running code is in; empty outside of all."""
        return self._guard.call("hook", self._agent_around, self._current(), default="")

    def current_run(self) -> Episode | None:
        """Return the innermost episode that is the run of an agent here."""
        return self._guard.call("hook", self._run_around, self._current(), default=None)

    def mark_captured(self) -> None:
        """Take note that a client's call in the current span is recorded, with its tokens."""
        for open_span in self._current():
            open_span.captured = True

    def after_fork(self) -> None:
        """Make a new lock in a child process: the thread that held the old one does not exist there."""
        self._lock = threading.RLock()

    def _current(self) -> Iterator[OpenSpan]:
        open_span = self._open.get(trace.get_current_span().get_span_context().span_id)
        return iter(()) if open_span is None else open_span.ancestry()

    # Spans

    def _remember(self, span: Span) -> None:
        scope = span.instrumentation_scope.name if span.instrumentation_scope else ""
        if scope.replace("_", "").replace("-", "").endswith(HOOKED_SCOPES):
            return
        parent = None if span.parent is None else self._open.get(span.parent.span_id)
        self._open[span.context.span_id] = OpenSpan(span, parent, self._recorder.current_episode())
        while len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)
            self._recorder.counts.add("hook_starts_forgotten")

    def _agent_around(self, spans: Iterable[OpenSpan]) -> str:
        return next((name for open_span in spans if (name := self._agent_of(open_span))), "")

    def _run_around(self, spans: Iterable[OpenSpan]) -> Episode | None:
        return next((run for open_span in spans if (run := self._run_of(open_span)) is not None), None)

    def _fields_of(self, open_span: OpenSpan) -> Any:
        attributes = open_span.span.attributes or {}
        return self._foreign.Fields(
            {name: list(value) if isinstance(value, tuple) else value for name, value in attributes.items()}
        )

    def _agent_of(self, open_span: OpenSpan) -> str | None:
        return self._formats.read_agent(open_span.span.name, self._fields_of(open_span))

    def _content_of(self, open_span: OpenSpan) -> Any:
        events = [(event.name, dict(event.attributes or {})) for event in open_span.span.events]
        return self._formats.read_content(open_span.span.name, self._fields_of(open_span), events)

    def _run_of(self, open_span: OpenSpan) -> Episode | None:
        """Return the episode that is the run of this agent, opened here if it is to be one."""
        with self._lock:
            if open_span.is_opening:  # starting the episode asks for the current run: do not start it again
                return None
            if open_span.run is None and (agent := self._agent_of(open_span)) is not None:
                outer = open_span.around
                if outer is None:
                    is_run = self._task is not None
                else:
                    is_run = agent in self._child_agents and not self._is_within(open_span, agent)
                if is_run:
                    task = self._task if outer is None else outer.task
                    open_span.is_opening = True
                    open_span.run = self._recorder.start(task=task or "", agent=agent, parent=outer)
                    open_span.is_opening = False
            return open_span.run

    def _is_within(self, open_span: OpenSpan, agent: str) -> bool:
        """Say whether a span lies in a run of the same agent, with no tool between."""
        for outer in open_span.ancestry():
            if self._formats.is_tool(self._fields_of(outer)):
                return False
            if outer.run is not None and self._agent_of(outer) == agent:
                return True
        return False

    def _report(self, open_span: OpenSpan) -> None:
        span = open_span.span
        is_error = span.status.status_code is trace.StatusCode.ERROR
        error = (span.status.description or "the span failed") if is_error else None
        if open_span.run is not None:
            open_span.run.end("error" if is_error else "completed", error)
        elif (episode := open_span.around) is not None:
            latency_ms = ((span.end_time or 0) - (span.start_time or 0)) // NS_IN_MS
            if self._formats.is_tool(self._fields_of(open_span)):
                self._report_tool(open_span, episode, error, latency_ms)
            elif _is_unrecorded(open_span) and isinstance(
                call := self._content_of(open_span), self._foreign.ImportedCall
            ):
                self._report_call(open_span, call, episode, latency_ms)

    def _report_tool(self, open_span: OpenSpan, episode: Episode, error: str | None, latency_ms: int) -> None:
        tool, inner = self._content_of(open_span), open_span.inner_tool
        if inner is not None:
            result = inner.result if tool.result is None else tool.result
            tool = replace(
                tool, call_id=tool.call_id or inner.call_id, arguments=tool.arguments or inner.arguments, result=result
            )
        for outer in list(open_span.ancestry())[1:]:
            if self._formats.is_tool(self._fields_of(outer)) and self._content_of(outer).name == tool.name:
                outer.inner_tool = tool
                return
        fields = {"arguments": tool.arguments, "result": tool.result, "tool_call_id": tool.call_id}
        episode.tool(tool.name, **fields, error=error, latency_ms=latency_ms)

    def _report_call(self, open_span: OpenSpan, call: Any, episode: Episode, latency_ms: int) -> None:
        """Record the framework's own view of a call that no client of ours has seen."""
        exchange = Exchange(
            request=call.request,
            answer=call.answer,
            streamed=call.streamed,
            latency_ms=latency_ms,
            withheld=NOT_CAPTURED,
            hook=HOOK,
        )
        self._recorder.counts.add("calls_not_captured")
        episode.record(exchange, self._agent_around(open_span.ancestry()) or current_function())
        for outer in open_span.ancestry():
            outer.captured = True


def _is_unrecorded(open_span: OpenSpan) -> bool:
    """Say whether no client has recorded a call in this span, as far as the span can say so."""
    scope = open_span.span.instrumentation_scope
    return not open_span.captured and (scope is None or scope.name not in UNSEEN_SCOPES)
