"""The wrapped client behaves as the client it wraps, and what it saw becomes turns."""

import asyncio
import json
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from rollbus.producers import MemorySink, Recorder, init
from rollbus.schemas.records.events import EpisodeEnded, TurnRecorded, WriterClosed
from rollbus.schemas.records.messages import history_hash
from tests.producers.openai_server import Server, chunk, completion, sse
from tests.producers.recorded_events import assert_whole, turns
from tests.producers.recorded_events import recorded_events as events_of

HELLO: Any = [{"role": "user", "content": "Say hello"}]


@pytest.mark.parametrize(
    ("seed", "recorded_seed"), [(5, 5), (2**64 - 1, None)], ids=["5", "larger than a record holds"]
)
def test_a_call_is_recorded_with_its_exact_tokens_and_sampling_settings(
    recorder: Recorder, sink: MemorySink, server: Server, seed: int, recorded_seed: int | None
) -> None:
    client = recorder.wrap(server.client())
    assert isinstance(client, openai.OpenAI)
    with recorder.episode(task="greet"):
        answer = client.chat.completions.create(
            model="agent",
            messages=HELLO,
            temperature=0.7,
            top_p=0.9,
            max_tokens=7,
            seed=seed,
            frequency_penalty=0.5,
            presence_penalty=0.25,
            extra_body={"top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1},
        )
    assert isinstance(answer, ChatCompletion)
    assert answer.choices[0].logprobs is None
    assert "token_ids" not in (answer.choices[0].model_extra or {})
    assert "prompt_token_ids" not in (answer.model_extra or {})
    assert server.requests[0]["logprobs"] is True
    assert server.requests[0]["return_token_ids"] is True
    (turn,) = turns(recorder, sink)
    assert_whole(turn)
    assert (turn.temperature, turn.top_p, turn.top_k, turn.min_p, turn.max_tokens) == (0.7, 0.9, 40, 0.05, 7)
    assert (turn.frequency_penalty, turn.presence_penalty, turn.repetition_penalty) == (0.5, 0.25, 1.1)
    assert turn.seed == recorded_seed


def test_the_application_gets_the_fields_that_it_requested(recorder: Recorder, server: Server) -> None:
    client = recorder.wrap(server.client())
    with recorder.episode(task="greet"):
        answer = client.chat.completions.create(
            model="agent", messages=HELLO, logprobs=True, extra_body={"return_token_ids": True}
        )
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].model_extra == {"token_ids": [10, 20]}


def test_outside_of_an_episode_a_call_is_left_alone(recorder: Recorder, sink: MemorySink, server: Server) -> None:
    recorder.wrap(server.client()).chat.completions.create(model="agent", messages=HELLO)
    assert "logprobs" not in server.requests[0]
    assert turns(recorder, sink) == []
    assert recorder.counters["calls_outside_episode"] == 1


def test_the_first_call_outside_of_an_episode_is_named_in_the_agents_log(
    recorder: Recorder, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        recorder.wrap(server.client()).chat.completions.create(model="agent", messages=HELLO)
    (line,) = (record.getMessage() for record in caplog.records if record.name.startswith("rollbus"))
    assert line.startswith("rollbus: a call is in no episode, so it is not recorded: make it within `with rb.episode(")


def test_passive_mode_changes_no_request_and_says_what_is_missing(
    recorder: Recorder, sink: MemorySink, server: Server
) -> None:
    plain = completion()
    plain["choices"][0] |= {"logprobs": None, "token_ids": None}
    server.script = lambda body: plain
    client = recorder.wrap(server.client(), logprobs="passive")
    with recorder.episode(task="greet"):
        client.chat.completions.create(model="agent", messages=HELLO)
    assert set(server.requests[0]) == {"model", "messages"}
    (turn,) = turns(recorder, sink)
    assert turn.untrainable_reason == "no_logprobs"


def test_an_answer_with_fewer_choices_than_asked_for_says_so(
    recorder: Recorder, sink: MemorySink, server: Server
) -> None:
    client = recorder.wrap(server.client())
    with recorder.episode(task="greet"):
        client.chat.completions.create(model="agent", messages=HELLO, n=2)
    assert [turn.untrainable_reason for turn in turns(recorder, sink)] == [None, "no_choice"]


def test_request_mode_respects_an_explicit_no(recorder: Recorder, server: Server) -> None:
    client = recorder.wrap(server.client(), logprobs="request")
    with recorder.episode(task="greet"):
        client.chat.completions.create(model="agent", messages=HELLO, logprobs=False)
        client.chat.completions.create(model="agent", messages=HELLO)
    assert [request["logprobs"] for request in server.requests] == [False, True]


def test_a_stream_is_recorded_and_its_extra_usage_chunk_is_hidden(
    recorder: Recorder, sink: MemorySink, server: Server
) -> None:
    client = recorder.wrap(server.client())
    with recorder.episode(task="greet"):
        stream = client.chat.completions.create(model="agent", messages=HELLO, stream=True)
        assert isinstance(stream, openai.Stream)
        chunks = list(stream)
    assert "".join(item.choices[0].delta.content or "" for item in chunks) == "Hello there"
    assert all(item.choices[0].logprobs is None for item in chunks)
    (turn,) = turns(recorder, sink)
    assert_whole(turn)
    assert turn.streamed


async def test_the_asynchronous_client_is_recorded_too(recorder: Recorder, sink: MemorySink, server: Server) -> None:
    client = recorder.wrap(server.async_client())
    assert isinstance(client, openai.AsyncOpenAI)
    async with recorder.episode(task="greet"):
        answer = await client.chat.completions.create(model="agent", messages=HELLO)
        assert answer.choices[0].message.content == "Hello there"
        stream = await client.chat.completions.create(model="agent", messages=HELLO, stream=True)
        assert isinstance(stream, openai.AsyncStream)
        assert len([item async for item in stream]) == 3
        async with client.chat.completions.stream(model="agent", messages=HELLO) as helper:
            async for _ in helper:
                pass
            assert (await helper.get_final_completion()).choices[0].message.content == "Hello there"
        raw = await client.chat.completions.with_raw_response.create(model="agent", messages=HELLO)
        assert raw.parse().choices[0].message.content == "Hello there"
        async with client.chat.completions.with_streaming_response.create(model="agent", messages=HELLO) as response:
            assert (await response.parse()).choices[0].message.content == "Hello there"
    recorded_turns = turns(recorder, sink)
    assert len(recorded_turns) == 5
    for turn in recorded_turns:
        assert_whole(turn)
    await client.close()


def test_every_other_way_to_call_is_recorded_once(recorder: Recorder, sink: MemorySink, server: Server) -> None:
    client = recorder.wrap(server.client())
    completions = client.chat.completions
    with recorder.episode(task="greet"):
        assert completions.with_raw_response.create(model="agent", messages=HELLO).parse().id == "chatcmpl-1"
        raw_stream = completions.with_raw_response.create(model="agent", messages=HELLO, stream=True).parse()
        assert len(list(raw_stream)) == 3
        with completions.with_streaming_response.create(model="agent", messages=HELLO) as response:
            assert response.parse().id == "chatcmpl-1"
        copied = client.with_options(timeout=3).with_options(max_retries=0)
        assert isinstance(copied, openai.OpenAI)
        copied.chat.completions.create(model="agent", messages=HELLO)
        client.with_raw_response.chat.completions.create(model="agent", messages=HELLO)
        with completions.stream(model="agent", messages=HELLO) as helper:
            helper.until_done()
    recorded_turns = turns(recorder, sink)
    assert len(recorded_turns) == 6
    for turn in recorded_turns:
        assert_whole(turn)


async def test_a_body_that_the_application_reads_by_itself_is_recorded_at_the_end(
    recorder: Recorder, sink: MemorySink, server: Server
) -> None:
    with recorder.episode(task="greet"):
        completions = recorder.wrap(server.client()).chat.completions.with_streaming_response
        with completions.create(model="agent", messages=HELLO) as response:
            assert json.loads(response.read())["id"] == "chatcmpl-1"
        asynchronous = recorder.wrap(server.async_client()).chat.completions.with_streaming_response
        async with asynchronous.create(model="agent", messages=HELLO) as body:
            assert json.loads(await body.text())["id"] == "chatcmpl-1"
        with completions.create(model="agent", messages=HELLO, stream=True) as response:
            assert list(response.iter_lines())[-2] == "data: [DONE]"
    read, read_async, streamed_raw = turns(recorder, sink)
    for turn in (read, read_async, streamed_raw):
        assert_whole(turn)


class Greeting(BaseModel):
    """What the model is asked to fill."""

    text: str


def test_structured_answers_are_parsed_and_recorded(recorder: Recorder, sink: MemorySink, server: Server) -> None:
    server.script = lambda body: completion(content='{"text": "hi"}')
    client = recorder.wrap(server.client())
    with recorder.episode(task="greet"):
        answer = client.chat.completions.parse(model="agent", messages=HELLO, response_format=Greeting)
        also = client.beta.chat.completions.parse(model="agent", messages=HELLO, response_format=Greeting)
    assert answer.choices[0].message.parsed == also.choices[0].message.parsed == Greeting(text="hi")
    verdicts = [turn.untrainable_reason for turn in turns(recorder, sink)]
    assert verdicts == ["sampling_constrained"] * 2  # the schema chose among the tokens


def test_each_of_several_choices_is_a_turn(recorder: Recorder, sink: MemorySink, server: Server) -> None:
    server.script = lambda body: completion(choices=3)
    client = recorder.wrap(server.client())
    with recorder.episode(task="greet"):
        client.chat.completions.create(model="agent", messages=HELLO, n=3)
    recorded_turns = turns(recorder, sink)
    assert [turn.choice for turn in recorded_turns] == [0, 1, 2]
    assert [turn.prefix_count for turn in recorded_turns] == [0, 1, 1]
    assert all(turn.trainable for turn in recorded_turns)


def test_a_turn_sends_only_the_messages_that_are_new(recorder: Recorder, sink: MemorySink, server: Server) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    server.script = lambda body: completion(content=None, tool_calls=[call])
    client = recorder.wrap(server.client())
    messages: list[Any] = [{"role": "system", "content": "Be kind"}, *HELLO]
    tools: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    with recorder.episode(task="greet"):
        answer = client.chat.completions.create(model="agent", messages=messages, tools=tools)
        messages.append(answer.choices[0].message)
        messages.append({"role": "tool", "tool_call_id": "c1", "content": "a wall"})
        client.chat.completions.create(model="agent", messages=messages, tools=tools)
        messages[1] = {"role": "user", "content": "edited"}
        client.chat.completions.create(model="agent", messages=messages, tools=tools)
    first, second, third = turns(recorder, sink)
    assert [message.role for message in first.added_messages] == ["system", "user"]
    assert json.loads(first.completion.tool_calls or "") == [call]
    assert [message.role for message in second.added_messages] == ["tool"]
    assert second.prefix_count == 3
    assert second.prefix_hash == history_hash([*first.added_messages, first.completion])
    assert (third.prefix_count, third.added_messages[0].content) == (1, "edited")
    assert (first.tools is not None, second.tools) == (True, None)
    assert first.tools_hash == second.tools_hash != ""


def test_a_failing_call_fails_as_it_would_without_us(recorder: Recorder, sink: MemorySink, server: Server) -> None:
    server.script = lambda body: httpx.Response(400, json={"error": {"message": "context too long"}})
    client = recorder.wrap(server.client())
    with recorder.episode(task="greet"), pytest.raises(openai.BadRequestError, match="context too long"):
        client.chat.completions.create(model="agent", messages=HELLO)
    assert len(server.requests) == 1
    (turn,) = turns(recorder, sink)
    assert (turn.untrainable_reason, turn.completion.content) == ("call_failed", None)
    assert recorder.counters["calls_failed"] == 1


async def test_a_cancelled_or_timed_out_call_is_a_turn_with_its_reason(recorder: Recorder, sink: MemorySink) -> None:
    call_begun = asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        if b"wait" not in request.content:
            raise httpx.ReadTimeout("late")
        call_begun.set()
        return await asyncio.Future()

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    client = recorder.wrap(
        openai.AsyncOpenAI(api_key="k", base_url="http://server/v1", http_client=http, max_retries=0)
    )
    async with recorder.episode(task="greet"):
        with pytest.raises(openai.APITimeoutError):
            await client.chat.completions.create(model="agent", messages=HELLO)
        call = asyncio.ensure_future(client.chat.completions.create(model="wait", messages=HELLO))
        await call_begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert [turn.untrainable_reason for turn in turns(recorder, sink)] == ["call_timed_out", "call_cancelled"]


def test_an_image_in_the_prompt_makes_a_turn_untrainable(recorder: Recorder, sink: MemorySink, server: Server) -> None:
    client = recorder.wrap(server.client())
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    words = {"type": "text", "text": "what is it?"}
    for parts in ([words], [words, picture]):
        messages: Any = [{"role": "user", "content": parts}]
        with recorder.episode(task="look"):
            client.chat.completions.create(model="agent", messages=messages)
    assert [turn.untrainable_reason for turn in turns(recorder, sink)] == [None, "media_input"]


class Facade:
    """A client of another package that makes its calls through one of OpenAI's, as instructor's does."""

    def __init__(self, client: openai.OpenAI) -> None:
        self.client = client

    @property
    def chat(self) -> Any:
        return self

    @property
    def completions(self) -> Any:
        return self

    def create(self, **options: Any) -> Any:
        return self.client.chat.completions.create(**options)


def test_wrapping_an_unrecordable_object_is_reported_once(
    recorder: Recorder, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    facade = Facade(server.client())
    assert recorder.wrap(facade) is facade
    recorder.wrap(facade)
    assert recorder.counters["hook_errors.wrap"] == 2
    (line,) = [message for message in caplog.messages if "wrap failed" in message]
    assert "Facade makes its calls elsewhere: wrap the OpenAI client" in line


@pytest.mark.parametrize("leave", ["break", "close", "keep"])
def test_an_abandoned_stream_is_a_truncated_turn(
    recorder: Recorder, sink: MemorySink, server: Server, leave: str
) -> None:
    client = recorder.wrap(server.client())
    abandoned_streams = []
    with recorder.episode(task="greet"):
        stream = client.chat.completions.create(model="agent", messages=HELLO, stream=True)
        next(stream)
        next(stream)
        if leave == "close":
            stream.close()
        if leave == "keep":
            abandoned_streams.append(stream)
        del stream
    (turn,) = turns(recorder, sink)
    assert (turn.untrainable_reason, turn.finish_reason) == ("truncated_stream", "abandoned")
    assert turn.completion.content == "Hello"
    for stream in abandoned_streams:
        stream.close()


async def test_a_cancelled_stream_is_a_truncated_turn(recorder: Recorder, sink: MemorySink, server: Server) -> None:
    client = recorder.wrap(server.async_client())
    read = asyncio.Event()

    async def consume() -> None:
        async with recorder.episode(task="greet"):
            stream = await client.chat.completions.create(model="agent", messages=HELLO, stream=True)
            async for _ in stream:
                read.set()
                await asyncio.sleep(60)

    task = asyncio.create_task(consume())
    await read.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (turn,) = turns(recorder, sink)
    assert turn.untrainable_reason == "truncated_stream"
    await client.close()


def test_a_stream_that_breaks_in_a_tool_call_raises_and_is_recorded(
    recorder: Recorder, sink: MemorySink, server: Server
) -> None:
    half = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a'}}
    chunks = [chunk([{"index": 0, "delta": {"role": "assistant", "tool_calls": [half]}, "finish_reason": None}])]
    server.script = lambda body: sse([*chunks, {"error": {"message": "engine died"}}], done=False)
    client = recorder.wrap(server.client())
    with recorder.episode(task="greet"), pytest.raises(openai.APIError, match="engine died"):
        list(client.chat.completions.create(model="agent", messages=HELLO, stream=True))
    (turn,) = turns(recorder, sink)
    assert turn.untrainable_reason == "truncated_stream"
    assert json.loads(turn.completion.tool_calls or "")[0]["function"]["arguments"] == '{"a'


def test_a_client_that_is_wrapped_twice_is_recorded_once(recorder: Recorder, sink: MemorySink) -> None:
    text = {"id": "c", "object": "text_completion", "created": 1, "model": "agent", "choices": []}
    response = {"id": "r", "object": "response", "created_at": 1, "model": "agent", "output": [], "status": "completed"}
    answers = {"prompt": text, "input": response, "messages": completion()}
    server = Server(lambda body: next(answers[name] for name in answers if name in body))
    original = server.client()
    assert original.responses is original.responses  # made before, as by another tool that has looked at it
    client = recorder.wrap(recorder.wrap(recorder.wrap(original)))
    with recorder.episode(task="t"):
        for wrapped_client in (client, client.with_options(timeout=3)):
            wrapped_client.chat.completions.create(model="agent", messages=HELLO)
            wrapped_client.completions.create(model="agent", prompt="x")
            wrapped_client.responses.create(model="agent", input="x")
            wrapped_client.chat.completions.parse(model="agent", messages=HELLO)
    assert len(turns(recorder, sink)) == len(server.requests) == 8


def test_two_recorders_on_one_client_both_record_its_calls(
    recorder: Recorder, sink: MemorySink, server: Server
) -> None:
    """The recorder that is bound to an episode needs no context."""
    other_sink = MemorySink()
    other = init(sink=other_sink, namespace="o.")
    episode = other.start(task="o")
    client = recorder.wrap(other.wrap(server.client(), episode=episode, function="planner"))
    with recorder.episode(task="t"):
        answer = client.chat.completions.create(model="agent", messages=HELLO)
    assert answer.choices[0].logprobs is None
    assert turns(recorder, sink)[0].trainable
    (bound,) = turns(other, other_sink)
    assert (bound.trainable, bound.episode_id, bound.function) == (True, episode.id, "planner")
    other.close(120)


def test_a_wrapper_of_another_tool_on_a_client_stays_in_force(
    recorder: Recorder, sink: MemorySink, server: Server
) -> None:
    client = server.client()
    create, models_asked = client.chat.completions.create, []

    def create_traced(**request: Any) -> Any:
        models_asked.append(request["model"])
        return create(**request)

    client.chat.completions.create = create_traced  # type: ignore[method-assign]
    wrapped = recorder.wrap(client)
    with recorder.episode(task="t"):
        answer = wrapped.chat.completions.create(model="agent", messages=HELLO)
        assert wrapped.chat.completions.with_raw_response.create(model="other", messages=HELLO).parse()
    assert models_asked == ["agent", "other"]
    assert answer.choices[0].logprobs is None
    assert [turn.trainable for turn in turns(recorder, sink)] == [True, True]


def test_the_original_client_stays_as_it_was(recorder: Recorder, sink: MemorySink, server: Server) -> None:
    original = server.client()
    recorder.wrap(original)
    with recorder.episode(task="greet"):
        answer = original.chat.completions.create(model="agent", messages=HELLO)
    assert answer.choices[0].logprobs is not None
    assert turns(recorder, sink) == []


@pytest.mark.parametrize("read", ["with_raw_response", "with_streaming_response"])
def test_a_raw_answer_that_is_cut_is_a_failed_call(recorder: Recorder, sink: MemorySink, read: str) -> None:
    """It left no turn at all, which agents on LiteLLM showed: the episode looked whole without it."""
    cut = httpx.Response(200, content=b'{"id": "chatcmpl-1", "cho', headers={"content-type": "application/json"})
    completions = recorder.wrap(Server(lambda body: cut).client()).chat.completions
    with recorder.episode(task="t"), ExitStack() as stack:
        response = getattr(completions, read).create(model="agent", messages=HELLO)
        if read == "with_streaming_response":
            response = stack.enter_context(response)
        with pytest.raises(json.JSONDecodeError):
            response.parse()
    assert [turn.untrainable_reason for turn in turns(recorder, sink)] == ["call_failed"]


async def test_a_call_that_outlives_its_episode_is_a_late_turn(recorder: Recorder, sink: MemorySink) -> None:
    go, call_begun = asyncio.Event(), asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        call_begun.set()
        await go.wait()
        return httpx.Response(200, json=completion())

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    client = recorder.wrap(openai.AsyncOpenAI(api_key="k", base_url="http://server/v1", http_client=http))
    async with recorder.episode(task="t"):
        call = asyncio.ensure_future(client.chat.completions.create(model="agent", messages=HELLO))
        await call_begun.wait()
    go.set()
    await call
    events = events_of(recorder, sink)
    (turn,) = (event for event in events if isinstance(event, TurnRecorded))
    assert_whole(turn)
    (end,) = (event for event in events if isinstance(event, EpisodeEnded))
    closed = {event.writer_id: event.count for event in events if isinstance(event, WriterClosed)}
    assert set(end.writer_ids) == set(closed)
    assert (turn.writer_id in end.writer_ids, closed[turn.writer_id]) == (True, 1)
    assert recorder.counters["calls_ended_late"] == 1


async def test_a_call_without_an_observed_end_is_a_turn_with_its_reason(recorder: Recorder, sink: MemorySink) -> None:
    call_begun = asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        call_begun.set()
        return await asyncio.Future()

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    client = recorder.wrap(openai.AsyncOpenAI(api_key="k", base_url="http://server/v1", http_client=http))
    async with recorder.episode(task="t"):
        call = asyncio.ensure_future(client.chat.completions.create(model="agent", messages=HELLO))
        await call_begun.wait()
    recorder.leave()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    events = events_of(recorder, sink)
    assert [event.untrainable_reason for event in events if isinstance(event, TurnRecorded)] == ["not_captured"]
    assert len([event for event in events if isinstance(event, WriterClosed)]) == 2
