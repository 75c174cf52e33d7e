"""What frameworks without a hook say in OpenTelemetry's spans: agents, tools, and calls that no client saw."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, Status, StatusCode, Tracer, use_span

from rollbus import instrument
from rollbus.producers import MemorySink, Recorder
from rollbus.producers.integrations.instrument import Instrumentation
from rollbus.schemas.records.events import EpisodeEnded, EpisodeStarted, ToolCalled, TurnRecorded
from tests.producers.integrations.agent_server import AgentServer, assert_agent, assert_sampled, turns_of
from tests.producers.recorded_events import recorded_events

ASK: Any = [{"role": "user", "content": "How many bolts?"}]
AGENT = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "keeper"}
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "agent"}
ANSWER_ATTRIBUTES = {
    "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "How many?"}]}]),
    "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "7"}]}]),
}


def tool_of(call_id: str, item: str) -> dict[str, str]:
    """The attributes of a tool's span."""
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "stock",
        "gen_ai.tool.call.id": call_id,
        "gen_ai.tool.call.arguments": json.dumps({"item": item}),
        "gen_ai.tool.call.result": f"{item}: 7",
    }


@pytest.fixture
def patches(recorder: Recorder) -> Iterator[Instrumentation]:
    """What is patched, until the test ends."""
    patches = instrument(recorder)
    yield patches
    patches.undo()


@pytest.fixture
def tracer(patches: Instrumentation) -> Tracer:
    """A framework's, of a provider that was made after the patch."""
    return TracerProvider().get_tracer("a.framework")


def play(tracer: Tracer, server: AgentServer) -> None:
    """An agent that asks, runs its tool, and asks again; each call has a span of its own."""
    client = server.client()
    with tracer.start_as_current_span("run", attributes=AGENT):
        messages = list(ASK)
        with tracer.start_as_current_span("chat", attributes=CHAT) as span:
            answer = client.chat.completions.create(model="agent", messages=messages).choices[0].message
            span.set_attributes(ANSWER_ATTRIBUTES)
        assert answer.tool_calls is not None
        (call,) = answer.tool_calls
        with tracer.start_as_current_span("tool", attributes=tool_of(call.id, "bolts")):
            messages += [answer, {"role": "tool", "tool_call_id": call.id, "content": "bolts: 7"}]
        with tracer.start_as_current_span("chat", attributes=CHAT) as span:
            client.chat.completions.create(model="agent", messages=messages)
            span.set_attributes(ANSWER_ATTRIBUTES)


def tools_of(recorder: Recorder, sink: MemorySink) -> list[ToolCalled]:
    """The tools recorded so far."""
    return [event for event in recorded_events(recorder, sink) if isinstance(event, ToolCalled)]


def test_a_call_that_a_span_and_a_client_see_is_one_turn_of_the_agent(
    recorder: Recorder, sink: MemorySink, server: AgentServer, tracer: Tracer
) -> None:
    with recorder.episode(task="stock"):
        play(tracer, server)
    assert_agent(server, recorded_events(recorder, sink))


def test_spans_of_an_existing_provider_are_read(
    recorder: Recorder, sink: MemorySink, server: AgentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = TracerProvider()
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)
    patches = instrument(recorder)
    with recorder.episode(task="stock"):
        play(provider.get_tracer("a.framework"), server)
        patches.undo()
        play(provider.get_tracer("a.framework"), AgentServer(tool="stock", arguments={"item": "bolts"}))
    assert_agent(server, recorded_events(recorder, sink))


def test_attributes_that_come_after_the_start_are_read(
    recorder: Recorder, sink: MemorySink, server: AgentServer, tracer: Tracer
) -> None:
    def begin(attributes: dict[str, str]) -> Span:
        span = tracer.start_span("later")
        span.set_attributes(attributes)
        return span

    with recorder.episode(task="stock"):
        run = begin(AGENT)
        with use_span(run):
            with use_span(begin(CHAT), end_on_exit=True):
                server.client().chat.completions.create(model="agent", messages=ASK)
            with use_span(begin(tool_of("call-1", "bolts")), end_on_exit=True) as span:
                span.add_event("gen_ai.choice", {"message": "never shown"})
        run.end()
    (turn,) = turns_of(recorded_events(recorder, sink))
    assert (turn.function, turn.trainable) == ("keeper", True)
    assert [(tool.tool_call_id, tool.result) for tool in tools_of(recorder, sink)] == [("call-1", "bolts: 7")]


async def test_concurrent_tools_are_separate_and_a_failing_one_has_its_error(
    recorder: Recorder, sink: MemorySink, tracer: Tracer
) -> None:
    async def use(call_id: str, item: str) -> None:
        with tracer.start_as_current_span("tool", attributes=tool_of(call_id, item)) as span:
            await asyncio.sleep(0)
            if item == "fault":
                span.set_status(Status(StatusCode.ERROR, "no such shelf"))

    async with recorder.episode(task="stock"):
        with tracer.start_as_current_span("run", attributes=AGENT):
            await asyncio.gather(use("c1", "bolts"), use("c2", "bolts"), use("c3", "fault"))
    tools = sorted((tool.tool_call_id, tool.arguments, tool.error) for tool in tools_of(recorder, sink))
    bolts, fault = '{"item": "bolts"}', '{"item": "fault"}'
    assert tools == [("c1", bolts, None), ("c2", bolts, None), ("c3", fault, "no such shelf")]


def test_a_tool_traced_twice_is_recorded_once_with_all_its_attributes(
    recorder: Recorder, sink: MemorySink, tracer: Tracer
) -> None:
    outer = {"openinference.span.kind": "TOOL", "tool.name": "stock", "output.value": "seven"}
    with (
        recorder.episode(task="stock"),
        tracer.start_as_current_span("stock", attributes=outer),
        tracer.start_as_current_span("tool", attributes=tool_of("c1", "bolts")),
    ):
        pass
    (tool,) = tools_of(recorder, sink)
    assert (tool.name, tool.tool_call_id, tool.result) == ("stock", "c1", "seven")
    assert tool.arguments == '{"item": "bolts"}'


def test_a_call_that_no_client_sees_is_one_turn_with_its_reason(
    recorder: Recorder, sink: MemorySink, tracer: Tracer
) -> None:
    with (
        recorder.episode(task="stock"),
        tracer.start_as_current_span("run", attributes=AGENT),
        tracer.start_as_current_span("router", attributes={**CHAT, **ANSWER_ATTRIBUTES}),
        tracer.start_as_current_span("chat", attributes={**CHAT, **ANSWER_ATTRIBUTES}),
    ):
        pass
    (turn,) = turns_of(recorded_events(recorder, sink))
    assert (turn.untrainable_reason, turn.function, turn.completion.content) == ("not_captured", "keeper", "7")
    assert [message.content for message in turn.added_messages] == ["How many?"]


def test_an_agent_is_an_episode_of_its_own_where_a_task_is_named(
    recorder: Recorder, sink: MemorySink, server: AgentServer
) -> None:
    patches = instrument(recorder, task="stock", child_agents=["keeper"])
    tracer = TracerProvider().get_tracer("a.framework")
    with tracer.start_as_current_span("request"):
        play(tracer, server)
    with recorder.episode(task="whole") as whole:
        play(tracer, AgentServer(tool="stock", arguments={"item": "bolts"}))
        assert recorder.current_episode() is whole
    patches.undo()
    events = recorded_events(recorder, sink)
    run, _, child = (event for event in events if isinstance(event, EpisodeStarted))
    assert (run.task, run.agent, run.parent_episode_id) == ("stock", "keeper", None)
    assert (child.task, child.agent, child.parent_episode_id) == ("whole", "keeper", whole.id)
    for episode in (run, child):
        kinds = [type(event) for event in events if event.episode_id == episode.episode_id]
        assert kinds[1:-1] == [TurnRecorded, ToolCalled, TurnRecorded, EpisodeEnded]
    assert_sampled(server, [turn for turn in turns_of(events) if turn.episode_id == run.episode_id])


def test_a_framework_with_a_hook_of_ours_is_not_read_twice(
    recorder: Recorder, sink: MemorySink, patches: Instrumentation
) -> None:
    for scope in ("openinference.instrumentation.langchain", "opentelemetry.instrumentation.openai_agents"):
        tracer = TracerProvider().get_tracer(scope)
        with recorder.episode(task="stock"), tracer.start_as_current_span("t", attributes=tool_of("c1", "bolts")):
            pass
    assert tools_of(recorder, sink) == []
