"""One line records what a process does through its libraries, once, and can be taken back."""

import asyncio
import importlib
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib import metadata
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import httpx
import litellm
import openai
import pytest
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER
from openai.resources.chat.completions import AsyncCompletions, Completions

from rollbus import instrument
from rollbus.producers import MemorySink, Recorder, init
from rollbus.producers.integrations import adk, langchain, llama_index, openai_agents
from rollbus.producers.integrations import instrument as module
from rollbus.producers.integrations.adk import RollbusPlugin
from rollbus.producers.integrations.instrument import Instrumentation
from rollbus.producers.integrations.langchain import RollbusHandler, record_model
from rollbus.producers.integrations.openai_agents import RollbusHooks
from rollbus.producers.integrations.patch_at_import import PatchAtImport
from rollbus.producers.integrations.patches import Library, PatchOptions
from rollbus.schemas.records.events import EpisodeEnded, EpisodeStarted, ToolCalled, WriterClosed
from tests.producers.integrations import test_adk, test_llama_index
from tests.producers.integrations.agent_server import AgentServer, assert_agent, assert_sampled, stock, turns_of
from tests.producers.integrations.test_langchain import model_of
from tests.producers.recorded_events import recorded_events

ASK: Any = [{"role": "user", "content": "How many bolts?"}]
ORIGINAL = Completions.create, AsyncCompletions.create, threading.Thread.start, ThreadPoolExecutor.submit


@pytest.fixture
def patches(recorder: Recorder) -> Iterator[Instrumentation]:
    """What is patched, until the test ends."""
    patches = instrument(recorder)
    yield patches
    patches.undo()
    assert (Completions.create, AsyncCompletions.create, threading.Thread.start, ThreadPoolExecutor.submit) == ORIGINAL


async def test_any_client_is_recorded_streamed_or_not_until_it_is_undone(
    recorder: Recorder, sink: MemorySink, server: AgentServer, patches: Instrumentation
) -> None:
    assert {"openai", "litellm", "langchain_core", "agents", "threading"} <= set(patches.names)
    assert patches.failed == {}
    client, asynchronous = server.client(), server.async_client()
    with recorder.episode(task="stock"):
        client.chat.completions.create(model="agent", messages=ASK)
        list(client.chat.completions.create(model="agent", messages=ASK, stream=True))
        await asynchronous.chat.completions.create(model="agent", messages=ASK)
        patches.undo()
        client.chat.completions.create(model="agent", messages=ASK)
    assert "logprobs" not in server.requests[-1]
    server.sampled.pop()
    turns = turns_of(recorded_events(recorder, sink))
    assert_sampled(server, turns)
    assert [turn.streamed for turn in turns] == [False, True, False]


def test_a_client_that_is_wrapped_too_is_recorded_once(
    recorder: Recorder, sink: MemorySink, server: AgentServer, patches: Instrumentation
) -> None:
    client = recorder.wrap(server.client())
    with recorder.episode(task="stock"):
        client.chat.completions.create(model="agent", messages=ASK)
        client.with_options(max_retries=1).chat.completions.create(model="agent", messages=ASK)
    assert_sampled(server, turns_of(recorded_events(recorder, sink)))


def test_a_thread_pool_makes_each_call_in_the_episode_of_its_caller(
    recorder: Recorder, sink: MemorySink, server: AgentServer, patches: Instrumentation
) -> None:
    client = server.client()

    def ask(*_: object) -> None:
        client.chat.completions.create(model="agent", messages=ASK)

    pools: list[ThreadPool] = []
    for number in range(2):
        with recorder.episode(task="stock", episode_id=f"e{number}"):
            pools = pools or [ThreadPool(2)]
            pools[0].map(ask, range(4), chunksize=1)
            pools[0].apply(ask)
            list(pools[0].imap_unordered(ask, range(2)))
    pools[0].apply(ask)
    pools[0].terminate()
    server.sampled.pop()
    assert recorder.counters["calls_outside_episode"] == 1
    turns = turns_of(recorded_events(recorder, sink))
    assert_sampled(server, turns)
    assert Counter(turn.episode_id for turn in turns) == {"e0": 7, "e1": 7}
    patches.undo()
    assert not vars(ThreadPool).keys() & {"apply_async", "imap"}


def test_a_thread_that_outlives_its_episode_calls_outside_any_episode(
    recorder: Recorder, sink: MemorySink, server: AgentServer, patches: Instrumentation
) -> None:
    client, ended = server.client(), threading.Event()

    def ask() -> None:
        ended.wait(120)
        client.chat.completions.create(model="agent", messages=ASK)

    thread = threading.Thread(target=ask)
    with recorder.episode(task="stock", episode_id="e0"):
        thread.start()
    with recorder.episode(task="stock", episode_id="e1"):
        ended.set()
        thread.join()
    closed = [event for event in recorded_events(recorder, sink) if isinstance(event, WriterClosed)]
    missed = {event.episode_id: event.partial for event in closed}
    assert missed == {"e0": (), "e1": ("calls_outside_episode",)}


@pytest.mark.usefixtures("traced_agents")
@pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20", "ignore::pydantic.PydanticDeprecatedSince211")
async def test_instrumenting_twice_records_once_with_the_second_settings(
    recorder: Recorder, sink: MemorySink, server: AgentServer, patches: Instrumentation
) -> None:
    again = instrument(recorder, child_agents=["keeper"])
    assert (patches.names, "openai" in again.names) == ((), True)
    async with recorder.episode(task="stock") as episode:
        await play_openai_agents(recorder, server)
        assert recorder.current_episode() is episode
        await play_llama_index(recorder, server)
    again.undo()
    events = recorded_events(recorder, sink)
    assert_sampled(server, turns_of(events))
    children = {event.episode_id for event in events if isinstance(event, EpisodeStarted) and event.parent_episode_id}
    assert {turn.episode_id for turn in turns_of(events)} == children
    assert {event.episode_id: event.name for event in events if isinstance(event, ToolCalled)} == dict.fromkeys(
        children, "stock"
    )


async def play_langchain(recorder: Recorder, server: AgentServer) -> None:
    """An agent of LangChain."""
    agent = create_agent(record_model(model_of(server), recorder), [tool(stock)], name="keeper")
    agent.invoke({"messages": [HumanMessage("How many?")]}, config={"callbacks": [RollbusHandler(recorder)]})


async def play_llama_index(recorder: Recorder, server: AgentServer) -> None:
    """An agent of LlamaIndex."""
    await test_llama_index.load_agent(test_llama_index.llm_of(server)).run("How many bolts?")


async def play_adk(recorder: Recorder, server: AgentServer) -> None:
    """An agent of Google's ADK."""
    await test_adk.ask(test_adk.load_agent(server.async_client()), RollbusPlugin(recorder))
    await end_litellms_callbacks()


async def play_openai_agents(recorder: Recorder, server: AgentServer) -> None:
    """An agent of OpenAI Agents."""
    agent = Agent(name="keeper", tools=[function_tool(stock)], model=agents_model(server))
    await Runner.run(agent, "How many bolts?", hooks=RollbusHooks(recorder))


@pytest.mark.usefixtures("traced_agents", "patches")
@pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20", "ignore::pydantic.PydanticDeprecatedSince211")
@pytest.mark.filterwarnings("ignore:Pydantic serializer:UserWarning")
@pytest.mark.parametrize(
    ("play", "hook", "step"),
    [
        (play_langchain, langchain, "_name_of"),
        (play_llama_index, llama_index, "_agent_of_step"),
        (play_adk, adk, "_model"),
        (play_openai_agents, openai_agents, "_tool_key"),
    ],
    ids=["langchain", "llama-index", "adk", "openai-agents"],
)
async def test_a_hook_broken_by_another_framework_version_harms_no_agent(
    recorder: Recorder,
    sink: MemorySink,
    server: AgentServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    play: Callable[[Recorder, AgentServer], Awaitable[None]],
    hook: Any,
    step: str,
) -> None:
    def broken(*args: object) -> None:
        raise AttributeError("other version")

    monkeypatch.setattr(hook, step, broken)
    async with recorder.episode(task="stock"):
        await play(recorder, server)
    assert recorder.flush(120)
    assert_sampled(server, turns_of(list(sink.records("episode-events"))))
    assert recorder.counters["hook_errors.hook"] > 0
    assert [line for line in caplog.messages if "other version" in line] == [
        "rollbus: hook failed, the call itself goes on: AttributeError('other version')"
    ]


@pytest.mark.usefixtures("traced_agents", "patches")
@pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince211", "ignore:Pydantic serializer:UserWarning")
@pytest.mark.parametrize("play", [play_langchain, play_adk, play_openai_agents])
async def test_an_agent_that_has_its_own_hook_too_is_recorded_once(
    recorder: Recorder, sink: MemorySink, server: AgentServer, play: Callable[[Recorder, AgentServer], Awaitable[None]]
) -> None:
    async with recorder.episode(task="stock"):
        await play(recorder, server)
    assert_agent(server, recorded_events(recorder, sink))


@pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince211", "ignore:Pydantic serializer:UserWarning")
async def test_litellm_calls_no_hook_of_ours_after_undo(recorder: Recorder, server: AgentServer) -> None:
    patches = instrument(recorder)
    await litellm.acompletion(model="openai/agent", messages=ASK, client=server.async_client())
    await end_litellms_callbacks()
    patches.undo()
    callbacks = litellm.logging_callback_manager._get_all_callbacks() + litellm.input_callback
    assert not [callback for callback in callbacks if type(callback).__module__.startswith("rollbus")]


async def end_litellms_callbacks() -> None:
    """Let its worker call back in this loop: what it still holds when the loop ends is never awaited."""
    await asyncio.sleep(0)  # a task of its own hands the callbacks to the worker
    await GLOBAL_LOGGING_WORKER.flush()


def test_a_library_that_is_imported_later_is_patched_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("late_library", "late_too"):
        (tmp_path / f"{name}.py").write_text("answer = 7")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[int] = []
    later = PatchAtImport({"late_library", "late_too"}, lambda name: seen.append(sys.modules[name].answer))
    later.install()
    importlib.import_module("late_library")
    assert seen == [7]
    later.remove()
    importlib.import_module("late_too")
    assert seen == [7]
    assert later not in sys.meta_path


def test_two_recorders_both_patch_a_library_that_is_imported_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_for_two.py").write_text("answer = 7")
    monkeypatch.syspath_prepend(tmp_path)
    patched: list[str] = []
    hooks = [PatchAtImport({"late_for_two"}, patched.append) for _ in range(2)]
    for hook in hooks:
        hook.install()
    importlib.import_module("late_for_two")
    for hook in hooks:
        hook.remove()
    assert patched == ["late_for_two"] * 2


@pytest.mark.parametrize("first_undone", [0, 1])
def test_each_of_two_recorders_records_its_own_episodes_until_it_is_undone(first_undone: int) -> None:
    sends = httpx.AsyncClient.send, httpx.Client.send, openai.OpenAI.request
    sinks = [MemorySink(), MemorySink()]
    recorders = [init(sink=sink, namespace="t.") for sink in sinks]
    patches = [instrument(recorder) for recorder in recorders]

    def assert_recorded(number: int) -> None:
        server, recorder = AgentServer(tool="stock", arguments={"item": "bolts"}), recorders[number]
        with recorder.episode(task="stock", episode_id=f"e{server}") as episode:
            agent = create_agent(model_of(server), [tool(stock)], name="keeper")
            agent.invoke({"messages": [HumanMessage("How many?")]})
        events = recorded_events(recorder, sinks[number])
        assert_agent(server, [event for event in events if event.episode_id == episode.id])

    for number in (0, 1):
        assert_recorded(number)
    patches[first_undone].undo()
    assert_recorded(1 - first_undone)
    patches[1 - first_undone].undo()
    assert not [name for recorder in recorders for name in recorder.counters if name == "calls_outside_episode"]
    assert (httpx.AsyncClient.send, httpx.Client.send, openai.OpenAI.request) == sends
    assert (Completions.create, AsyncCompletions.create, threading.Thread.start, ThreadPoolExecutor.submit) == ORIGINAL
    assert not vars(ThreadPool).keys() & {"apply_async", "imap"}
    for recorder in recorders:
        recorder.close(120)


def test_a_library_newer_than_any_that_was_tried_is_recorded_and_named_once(
    recorder: Recorder,
    sink: MemorySink,
    server: AgentServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "99.1.0" if name == "openai" else "0.1")
    patches = instrument(recorder)
    with recorder.episode(task="stock"):
        server.client().chat.completions.create(model="agent", messages=ASK)
    patches.undo()
    assert patches.untried == {"openai": "99.1.0"}
    assert len([line for line in caplog.messages if "openai 99.1.0 is newer than" in line]) == 1
    assert_sampled(server, turns_of(recorded_events(recorder, sink)))


def test_a_programs_module_named_like_a_library_is_left_alone(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    patches = instrument(recorder)
    assert (patches.names, patches.failed) == (("threading", "multiprocessing.pool"), {})
    patches.undo()


@pytest.mark.usefixtures("traced_agents")
async def test_with_a_task_a_call_outside_any_episode_gets_its_own(
    recorder: Recorder, sink: MemorySink, server: AgentServer
) -> None:
    patches = instrument(recorder, task="stock")
    client = server.client()
    client.chat.completions.create(model="agent", messages=ASK)
    list(client.chat.completions.create(model="agent", messages=ASK, stream=True))
    create_agent(model_of(server), [tool(stock)], name="keeper").invoke({"messages": [HumanMessage("How many?")]})
    agent = Agent(name="keeper", tools=[function_tool(stock)], model=agents_model(server))
    await Runner.run(agent, "How many bolts?")
    patches.undo()
    events = recorded_events(recorder, sink)
    assert_sampled(server, turns_of(events))
    turns = Counter(turn.episode_id for turn in turns_of(events))
    assert list(turns.values()) == [1, 1, 2, 2]
    assert {event.task for event in events if isinstance(event, EpisodeStarted)} == {"stock"}
    ended = {event.episode_id: event.stop_reason for event in events if isinstance(event, EpisodeEnded)}
    assert ended == dict.fromkeys(turns, "completed")
    assert "calls_outside_episode" not in recorder.counters


def agents_model(server: AgentServer) -> OpenAIChatCompletionsModel:
    """The server's model, for OpenAI Agents."""
    return OpenAIChatCompletionsModel("agent", server.async_client())


def test_a_patch_that_fails_leaves_its_library_as_it_was(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(options: PatchOptions, stack: ExitStack) -> None:
        stack.callback(setattr, openai, "rollbus_was_here", False)
        monkeypatch.setattr(openai, "rollbus_was_here", True, raising=False)
        raise AttributeError("a version that is made differently")

    monkeypatch.setattr(module, "LIBRARIES", {"openai": Library("openai", "3", half)})
    patches = instrument(recorder)
    assert patches.names == ()
    assert (
        patches.failed["openai"] == f"openai {openai.__version__}: AttributeError('a version that is made differently')"
    )
    assert openai.rollbus_was_here is False  # type: ignore[attr-defined]
    assert recorder.counters["hook_errors.instrument_openai"] == 1
