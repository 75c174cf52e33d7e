"""LiteLLM's calls, with its own view of the tokens or the wrapped client's beneath."""

import asyncio
import datetime
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import httpx
import litellm
import pytest
from litellm.exceptions import BadRequestError
from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER
from litellm.llms.custom_httpx.http_handler import HTTPHandler

from rollbus.producers import MemorySink, Recorder
from rollbus.producers.episode import context
from rollbus.producers.integrations.litellm import RollbusLogger
from rollbus.producers.turns.sampling_settings import NEUTRAL
from rollbus.schemas.records.events import EpisodeEnded, TurnRecorded, WriterClosed
from tests.producers.integrations.agent_server import AgentServer, assert_sampled
from tests.producers.openai_server import Server
from tests.producers.recorded_events import recorded_events
from tests.waiting import wait_until

pytestmark = pytest.mark.filterwarnings(
    "ignore::pydantic.PydanticDeprecatedSince211",  # LiteLLM reads deprecated attributes of its own chunks
    "ignore:Pydantic serializer warnings:UserWarning",  # and serialises answers as another type than they are
)
ASK: Any = [{"role": "user", "content": "How many bolts?"}]
EXTRA = {"return_token_ids": True, **{name: value for name, value in NEUTRAL.items() if name != "temperature"}}
WITH_TOKENS: dict[str, Any] = {"logprobs": True, "temperature": 1.0, "extra_body": EXTRA}


@pytest.fixture(autouse=True)
def _logger(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(litellm, "callbacks", [RollbusLogger(recorder)])
    yield
    litellm.logging_callback_manager._reset_all_callbacks()


@pytest.fixture
def loop() -> Iterator[None]:
    """An event loop of the thread: LiteLLM's blocking calls make one otherwise, and leave it open."""
    event_loop = asyncio.new_event_loop()
    asyncio.set_event_loop(event_loop)
    yield
    asyncio.set_event_loop(None)
    event_loop.close()


def turns(recorder: Recorder, sink: MemorySink, count: int) -> list[TurnRecorded]:
    """The turns, once there are so many: LiteLLM calls back from another thread."""

    def find() -> list[TurnRecorded]:
        turns_so_far = [event for event in recorded_events(recorder, sink) if isinstance(event, TurnRecorded)]
        return turns_so_far if len(turns_so_far) >= count else []

    return wait_until(find, f"{count} turns were not recorded")


def call(client: Any, **options: Any) -> Any:
    """Ask the scripted server through LiteLLM."""
    return litellm.completion(model="openai/agent", messages=ASK, client=client, **options)


@pytest.mark.usefixtures("loop")
def test_tokens_requested_from_litellm_are_recorded_by_a_closed_writer(
    recorder: Recorder, sink: MemorySink, server: AgentServer
) -> None:
    with recorder.episode(task="stock"), recorder.function("keeper"):
        call(server.client(), **{**WITH_TOKENS, "temperature": 0.5})
    recorded_turns = turns(recorder, sink, 1)
    assert_sampled(server, recorded_turns)
    assert [(turn.function, turn.temperature) for turn in recorded_turns] == [("keeper", 0.5)]
    assert recorded_turns[0].added_messages[0].content == "How many bolts?"
    assert_all_closed(recorder, sink)  # the logger's thread closes its writer after the turn
    closed = {
        event.writer_id: event.count for event in recorded_events(recorder, sink) if isinstance(event, WriterClosed)
    }
    assert closed[recorded_turns[0].writer_id] == 1


@pytest.mark.usefixtures("loop")
def test_a_call_through_a_wrapped_client_is_recorded_once_by_that_client(
    recorder: Recorder, sink: MemorySink, server: AgentServer
) -> None:
    with recorder.episode(task="stock"):
        for _ in call(recorder.wrap(server.client()), stream=True):
            pass
        call(server.client(), **WITH_TOKENS)  # its record shows that the logger had its time
    recorded_turns = turns(recorder, sink, 2)
    assert_sampled(server, recorded_turns)
    assert [turn.streamed for turn in recorded_turns] == [True, False]


@pytest.mark.usefixtures("loop")
def test_a_failed_call_leaves_no_open_writer(recorder: Recorder, sink: MemorySink) -> None:
    refusing = Server(lambda body: httpx.Response(400, json={"error": {"message": "no"}}))
    with recorder.episode(task="stock"), pytest.raises(BadRequestError):
        call(refusing.client())
    assert_all_closed(recorder, sink)


@pytest.mark.usefixtures("loop")
def test_a_stream_without_a_wrapped_client_says_that_its_tokens_are_lost(
    recorder: Recorder, sink: MemorySink, server: AgentServer
) -> None:
    with recorder.episode(task="stock"):
        for _ in call(server.client(), stream=True, **WITH_TOKENS):
            pass
    (turn,) = turns(recorder, sink, 1)
    assert (turn.streamed, turn.untrainable_reason) == (True, "not_captured")
    assert turn.completion.tool_calls is not None


@pytest.mark.usefixtures("loop")
def test_a_call_outside_an_episode_is_counted(recorder: Recorder, sink: MemorySink, server: AgentServer) -> None:
    call(server.client(), **WITH_TOKENS)
    with recorder.episode(task="stock"):
        call(server.client(), **WITH_TOKENS)
    assert len(turns(recorder, sink, 1)) == 1
    assert recorder.counters["calls_outside_episode"] == 1


def test_consecutive_calls_are_not_nested(recorder: Recorder, sink: MemorySink) -> None:
    logger, now, answer = RollbusLogger(recorder), datetime.datetime.now(), litellm.ModelResponse(id="r")
    with recorder.episode(task="stock") as episode:
        for call_id in ("one", "two"):
            logger.log_pre_api_call("agent", [], {"litellm_call_id": call_id})
        context.mark_captured()  # by a wrapped client beneath the second, while the first is still to be reported
        logger.log_success_event({"litellm_call_id": "two"}, answer, now, now)
        logger.log_success_event({"litellm_call_id": "one"}, answer, now, now)
        context.mark_captured()
        assert context.watch_call(lambda: None).above is None
    events = recorded_events(recorder, sink)
    (turn,) = (event for event in events if isinstance(event, TurnRecorded))
    (end,) = (event for event in events if isinstance(event, EpisodeEnded))
    assert turn.episode_id == episode.id
    assert turn.writer_id in end.writer_ids


def test_an_answer_of_an_unknown_shape_leaves_no_open_writer(recorder: Recorder, sink: MemorySink) -> None:
    logger, now = RollbusLogger(recorder), datetime.datetime.now()
    with recorder.episode(task="stock"):
        logger.log_pre_api_call("agent", [], {"litellm_call_id": "one"})
        logger.log_success_event({"litellm_call_id": "one"}, object(), now, now)
    assert recorder.counters["hook_errors.hook"] == 1
    assert recorder.flush(120)
    closed = {event.writer_id for event in sink.records() if isinstance(event, WriterClosed)}
    (end,) = (event for event in sink.records() if isinstance(event, EpisodeEnded))
    assert closed == set(end.writer_ids)


@pytest.mark.usefixtures("loop")
def test_a_responses_call_is_a_turn_and_leaves_no_open_writer(recorder: Recorder, sink: MemorySink) -> None:
    text = {"type": "output_text", "text": "7", "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
    tools = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    answer = {"id": "r", "object": "response", "created_at": 1, "model": "agent@3", "status": "completed", **tools}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json={**answer, "output": [message]}))
    with recorder.episode(task="stock"), httpx.Client(transport=transport) as http:
        options: Any = {"api_key": "k", "api_base": "http://server/v1", "client": HTTPHandler(client=http)}
        litellm.responses(model="openai/agent", input="How many bolts?", **options)
    (turn,) = turns(recorder, sink, 1)
    assert (turn.untrainable_reason, turn.completion.content) == ("not_captured", "7")
    assert_all_closed(recorder, sink)


def test_a_routers_call_is_recorded_before_its_own_loop_ends(
    recorder: Recorder, sink: MemorySink, server: AgentServer
) -> None:
    params: dict[str, Any] = {"model": "openai/agent", "api_key": "k", "api_base": "http://server/v1"}
    router = litellm.Router(model_list=[{"model_name": "shop", "litellm_params": params}])

    async def ask() -> None:
        async with recorder.episode(task="stock"):
            await router.acompletion(model="shop", messages=ASK, client=server.async_client(), **WITH_TOKENS)

    asyncio.run(ask())
    while (queue := GLOBAL_LOGGING_WORKER._queue) is not None and not queue.empty():
        queue.get_nowait()["coroutine"].close()  # what LiteLLM would never await
    assert_sampled(server, turns(recorder, sink, 1))
    assert_all_closed(recorder, sink)


def test_a_call_without_a_reported_end_is_a_turn_with_its_reason(recorder: Recorder, sink: MemorySink) -> None:
    logger = RollbusLogger(recorder)
    with recorder.episode(task="stock"):
        logger.log_pre_api_call("agent", [], {"litellm_call_id": "one", "messages": ASK})
    recorder.close(120)
    (turn,) = (event for event in sink.records("episode-events") if isinstance(event, TurnRecorded))
    assert turn.untrainable_reason == "not_captured"
    assert_all_closed(recorder, sink)


def assert_all_closed(recorder: Recorder, sink: MemorySink) -> None:
    """Every writer that the episode's end names has closed."""

    def are_closed() -> bool:
        events = recorded_events(recorder, sink)
        closed = {event.writer_id for event in events if isinstance(event, WriterClosed)}
        (end,) = (event for event in events if isinstance(event, EpisodeEnded))
        return closed == set(end.writer_ids)

    wait_until(are_closed, "a writer of the episode has not closed")


class PausedId:
    """A call's id that is being read while the process forks."""

    def __init__(self) -> None:
        self.read, self.forked = threading.Event(), threading.Event()

    def __str__(self) -> str:
        self.read.set()
        self.forked.wait(120)
        return "of the parent"


def test_a_child_forked_while_another_thread_records_does_not_hang(recorder: Recorder) -> None:
    logger, call_id = RollbusLogger(recorder), PausedId()

    def note(call_id: object) -> None:
        with recorder.episode(task="stock"):
            logger.log_pre_api_call("agent", [], {"litellm_call_id": call_id})
            logger.log_failure_event({"litellm_call_id": call_id}, None, None, None)

    thread = threading.Thread(target=note, args=(call_id,))
    thread.start()
    assert call_id.read.wait(120)
    with warnings.catch_warnings(action="ignore"):  # Python warns of a fork beside threads
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(120)
        try:
            note("of the child")
            os._exit(recorder.counters.get("hook_errors.hook", 0))
        finally:  # nothing of pytest goes on here
            os._exit(1)
    call_id.forked.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
