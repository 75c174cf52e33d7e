"""What passes the proxy is recorded token by token, and the program behind it notices nothing."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import httpx
import openai
import pytest
from starlette.requests import ClientDisconnect

from rollbus.producers import MemorySink, Outbound, Recorder, init
from rollbus.producers.proxy.app import Proxy
from rollbus.schemas.records.events import EpisodeEnded, EpisodeStarted, RewardReported, TurnRecorded
from rollbus.schemas.records.tokens import decode_token_ids
from tests.producers.capture import test_other_surfaces
from tests.producers.openai_server import Body, Server, completion, sse, streamed
from tests.producers.recorded_events import assert_whole, recorded_events, turns

STREAM = {"content-type": "text/event-stream"}
HELLO: Any = [{"role": "user", "content": "Say hello"}]


class Program:
    """A program that speaks to the proxy, and the model server behind it."""

    def __init__(self, recorder: Recorder, server: Server, **options: Any) -> None:
        """Join the program, the proxy and the server without a network."""
        self.server = server
        upstream = httpx.AsyncClient(transport=httpx.MockTransport(self._upstream))
        self.proxy = Proxy(recorder, "http://server/v1", upstream, **options)
        self.app = self.proxy.app()
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://proxy")
        self.seen: list[httpx.Request] = []

    def client(self, base_url: str = "http://proxy/v1", **headers: str) -> openai.AsyncOpenAI:
        """The program's own, unchanged client."""
        return openai.AsyncOpenAI(
            api_key="secret", base_url=base_url, http_client=self.http, max_retries=0, default_headers=headers
        )

    async def _upstream(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        return self.server._answer(request)


@pytest.fixture
def program(recorder: Recorder, server: Server) -> Program:
    """A program behind a proxy that records only what names its episode."""
    return Program(recorder, server)


async def test_a_call_that_names_its_episode_is_recorded_and_looks_untouched(
    recorder: Recorder, sink: MemorySink, program: Program
) -> None:
    with recorder.episode(task="greet", episode_id="注文 4711%") as episode:
        client = program.client(**episode.headers(), **{"rollbus-function": "greeter"})
        answer = await client.chat.completions.create(model="agent", messages=HELLO, temperature=0.5)
    assert answer.choices[0].message.content == "Hello there"
    assert answer.choices[0].logprobs is None
    assert "token_ids" not in (answer.choices[0].model_extra or {})
    (turn,) = turns(recorder, sink)
    assert_whole(turn)
    assert (turn.episode_id, turn.function, turn.temperature) == ("注文 4711%", "greeter", 0.5)


@pytest.mark.parametrize("path", ["//chat//completions", "/chat/completions/"])
async def test_a_call_is_recorded_however_its_path_is_written(
    recorder: Recorder, sink: MemorySink, program: Program, path: str
) -> None:
    with recorder.episode(task="greet") as episode:
        sent = {"model": "agent", "messages": HELLO}
        await program.http.post(f"http://proxy/v1{path}", json=sent, headers=episode.headers())
    assert program.seen[-1].url.path == "/v1/chat/completions"
    (turn,) = turns(recorder, sink)
    assert_whole(turn)


@pytest.mark.parametrize(
    ("path", "body", "answer", "text"),
    [
        ("completions", {"prompt": "Say"}, test_other_surfaces.completion(), "Hello there"),
        ("responses", {"input": "Say"}, test_other_surfaces.response(), "Hello there"),
    ],
)
async def test_the_other_apis_are_recorded_too(
    recorder: Recorder, sink: MemorySink, path: str, body: Body, answer: Body, text: str
) -> None:
    program = Program(recorder, Server(lambda body: answer))
    with recorder.episode(task="greet") as episode:
        api_answer = await program.http.post(f"/v1/{path}", json={"model": "agent", **body}, headers=episode.headers())
    assert '"logprob":' not in api_answer.text
    (turn,) = turns(recorder, sink)
    assert turn.completion.content == text
    assert list(decode_token_ids(turn.completion_token_ids or b"")) == [10, 20]


async def test_an_episode_opened_over_http_takes_the_calls_under_its_path(
    recorder: Recorder, sink: MemorySink, program: Program
) -> None:
    opened = (await program.http.post("/rollbus/episodes", json={"task": "greet", "example_id": "x1"})).json()
    await program.client(opened["base_url"]).chat.completions.create(model="agent", messages=HELLO)
    reward = await program.http.post(f"/rollbus/episodes/{opened['id']}/reward", json={"value": 0.5, "key": "k"})
    ended = await program.http.post(f"/rollbus/episodes/{opened['id']}/end")
    assert (reward.status_code, ended.status_code) == (202, 204)
    events = recorded_events(recorder, sink)
    assert [event.example_id for event in events if isinstance(event, EpisodeStarted)] == ["x1"]
    assert [event.value for event in events if isinstance(event, RewardReported)] == [0.5]
    assert [event.stop_reason for event in events if isinstance(event, EpisodeEnded)] == ["completed"]
    assert {event.episode_id for event in events} == {opened["id"]}
    gone = await program.http.post(f"/rollbus/episodes/{opened['id']}/end")
    assert (gone.status_code, "no episode" in gone.json()["error"]["message"]) == (404, True)


async def test_feedback_comes_at_any_time_over_http_by_id_or_alias(
    recorder: Recorder, sink: MemorySink, program: Program
) -> None:
    for target in ({"episode": "run-17"}, {"alias": "order-7"}):
        report = {**target, "value": 0.5, "name": "thumbs", "key": "k"}
        answers = [await program.http.post("/rollbus/feedback", json=report) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [202, 202]
        assert answers[0].json()["event_id"] == answers[1].json()["event_id"]
    recorded_events(recorder, sink)
    by_id, by_alias = sink.records("episode-events")[0], sink.records("aliases")[0]
    assert (by_id.episode_id, by_id.name, by_id.value) == ("run-17", "thumbs", 0.5)
    assert (by_alias.episode_id, by_alias.alias, by_alias.value) == ("", "order-7", 0.5)


async def test_with_a_task_every_call_is_an_episode(recorder: Recorder, sink: MemorySink, server: Server) -> None:
    program = Program(recorder, server, task="greet")
    for _ in range(2):
        await program.client().chat.completions.create(model="agent", messages=HELLO)
    events = recorded_events(recorder, sink)
    assert [event.task for event in events if isinstance(event, EpisodeStarted)] == ["greet", "greet"]
    assert len([event for event in events if isinstance(event, EpisodeEnded)]) == 2


async def test_a_call_of_an_episode_that_is_not_sampled_passes_as_it_is(recorder: Recorder, sink: MemorySink) -> None:
    program = Program(recorder, Server(), task="t")
    headers = init(sink=sink, sample_rate=0).start(task="t").headers()
    assert headers
    await program.client(**headers).chat.completions.create(model="agent", messages=HELLO)
    assert not any(name.startswith("rollbus") for name in program.seen[0].headers)
    assert "logprobs" not in program.server.requests[0]
    assert recorded_events(recorder, sink) == []


async def test_a_call_without_an_episode_passes_as_it_is_and_is_counted(
    recorder: Recorder, sink: MemorySink, program: Program
) -> None:
    answer = await program.client().chat.completions.create(model="agent", messages=HELLO)
    assert answer.choices[0].message.content == "Hello there"
    assert "logprobs" not in program.server.requests[0]
    assert recorder.counters["calls_outside_episode"] == 1
    assert not turns(recorder, sink)


async def test_a_stream_that_breaks_off_is_recorded_as_far_as_it_came(recorder: Recorder, sink: MemorySink) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield sse(streamed()[:2], done=False).read()
        raise httpx.ReadError("cut")

    program = Program(recorder, Server(lambda body: httpx.Response(200, headers=STREAM, content=pieces())))
    body = {"model": "agent", "messages": HELLO, "stream": True}
    with recorder.episode(task="greet") as episode, suppress(RuntimeError):  # with which a server cuts the answer
        await program.http.post("/v1/chat/completions", json=body, headers=episode.headers())
    (turn,) = turns(recorder, sink)
    assert (turn.untrainable_reason, turn.finish_reason) == ("truncated_stream", "abandoned")


@pytest.mark.parametrize("version", ["2.3", "2.4"])
async def test_a_program_that_leaves_before_its_stream_begins_leaves_nothing_open(
    recorder: Recorder, sink: MemorySink, version: str
) -> None:
    program, answers = Program(recorder, Server(), task="greet"), []

    async def upstream(request: httpx.Request) -> httpx.Response:
        answers.append(sse(streamed()))
        return answers[-1]

    program.proxy.http = httpx.AsyncClient(transport=httpx.MockTransport(upstream))
    body = json.dumps({"model": "m", "messages": HELLO, "stream": True}).encode()
    left: list[Any] = [{"type": "http.disconnect"}, {"type": "http.request", "body": body}]

    async def receive() -> Any:
        return left.pop() if len(left) > 1 else left[0]

    async def send(message: Any) -> None:  # servers tell it either way
        if version == "2.4":
            raise OSError("the program has left")
        await asyncio.sleep(10)

    path = "/v1/chat/completions"
    scope = {"type": "http", "asgi": {"spec_version": version}, "method": "POST", "headers": [], "query_string": b""}
    with suppress(ClientDisconnect):
        await program.app({**scope, "path": path, "raw_path": path.encode()}, receive, send)
    assert [answer.is_closed for answer in answers] == [True]
    assert {type(event) for event in recorded_events(recorder, sink)} >= {EpisodeStarted, TurnRecorded, EpisodeEnded}
    assert [turn.untrainable_reason for turn in turns(recorder, sink)] == ["truncated_stream"]


@pytest.mark.parametrize("path", ["models", "chat/completions"])
async def test_headers_that_come_more_than_once_pass_one_by_one(recorder: Recorder, path: str) -> None:
    headers = [("set-cookie", "a=1; Path=/"), ("set-cookie", "b=2"), ("content-type", "application/json")]
    server = Server(lambda body: httpx.Response(200, headers=headers, json=completion()))
    program = Program(recorder, server, task="t")
    answer = await program.http.post(f"/v1/{path}", json={"model": "agent", "messages": HELLO})
    passed = [pair for pair in answer.headers.multi_items() if pair[0] != "content-length"]
    assert passed == headers


async def test_one_programs_cookies_do_not_go_out_with_another_programs_calls(recorder: Recorder) -> None:
    server = Server(lambda body: httpx.Response(200, headers={"set-cookie": "session=of-one"}, json={}))
    program = Program(recorder, server)
    for headers in ({}, {}, {"cookie": "session=of-another"}):
        await program.http.post("/v1/models", json={}, headers=headers)
        program.http.cookies.clear()
    assert [request.headers.get("cookie") for request in program.seen] == [None, None, "session=of-another"]


@pytest.mark.parametrize("path", ["/models/a%2Fb", "/files/a%3Fb?c=%20d&e", "/files/%23?", "/x"])
async def test_other_routes_pass_with_their_method_path_and_status(recorder: Recorder, path: str) -> None:
    program = Program(recorder, Server(lambda body: httpx.Response(418, text="no", headers={"x-kept": "yes"})))
    answer = await program.http.patch(f"/v1{path}", json={})
    assert (answer.status_code, answer.headers["x-kept"], answer.text) == (418, "yes", "no")
    (seen,) = program.seen
    assert (seen.method, seen.url.host) == ("PATCH", "server")
    assert seen.url.raw_path.decode() == f"/v1{path}".removesuffix("?")


async def test_a_server_that_refuses_log_probs_is_asked_again_without(recorder: Recorder, sink: MemorySink) -> None:
    def refuse(body: Body) -> httpx.Response | Body:
        return httpx.Response(400, text="logprobs: unknown field") if "logprobs" in body else completion()

    program = Program(recorder, Server(refuse))
    with recorder.episode(task="greet") as episode:
        await program.client(**episode.headers()).chat.completions.create(model="agent", messages=HELLO)
        await program.client(**episode.headers()).chat.completions.create(model="agent", messages=HELLO)
    assert ["logprobs" in request for request in program.server.requests] == [True, False, False]
    assert {turn.untrainable_reason for turn in turns(recorder, sink)} <= {"logprobs_refused", None}


async def test_an_error_of_the_server_reaches_the_program(recorder: Recorder, sink: MemorySink) -> None:
    program = Program(recorder, Server(lambda body: httpx.Response(429, json={"error": {"message": "slow down"}})))
    with recorder.episode(task="greet") as episode, pytest.raises(openai.RateLimitError, match="slow down"):
        await program.client(**episode.headers()).chat.completions.create(model="agent", messages=HELLO)
    assert [turn.untrainable_reason for turn in turns(recorder, sink)] == ["call_failed"]
    assert recorder.counters["calls_failed"] == 1


async def test_a_program_that_hangs_up_ends_the_call_as_an_untrainable_turn(
    recorder: Recorder, sink: MemorySink
) -> None:
    call_begun, stopped = asyncio.Event(), asyncio.Event()

    async def slow(request: httpx.Request) -> httpx.Response:
        call_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError

    proxy = Proxy(recorder, "http://server/v1", httpx.AsyncClient(transport=httpx.MockTransport(slow)), task="greet")
    received = iter([{"type": "http.request", "body": json.dumps({"model": "a", "messages": HELLO}).encode()}])

    async def receive() -> Any:
        if (message := next(received, None)) is not None:
            return message
        await call_begun.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        """Nobody reads it."""

    path = "/v1/chat/completions"
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    await proxy.app()({**scope, "headers": headers, "root_path": "", "app": None}, receive, send)
    assert stopped.is_set()
    assert [turn.untrainable_reason for turn in turns(recorder, sink)] == ["not_delivered"]


async def test_a_server_that_is_away_is_a_bad_gateway(recorder: Recorder) -> None:
    def away(body: Body) -> httpx.Response:
        raise httpx.ConnectError("refused")

    program = Program(recorder, Server(away))
    answer = await program.http.post("/v1/chat/completions", json={"model": "agent", "messages": HELLO})
    assert answer.status_code == 502
    assert answer.json()["error"]["message"] == "the model server does not answer: ConnectError: refused"


async def test_an_absent_broker_delays_many_answers_no_longer_than_one(
    recorder: Recorder, sink: MemorySink, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, go, waits = sink.send, threading.Event(), list[float]()

    async def send_later(records: Sequence[Outbound]) -> frozenset[int]:
        await asyncio.to_thread(go.wait, 120)
        return await send(records)

    def flush(timeout: float) -> bool:
        waits.append(timeout)
        return go.wait(120)

    monkeypatch.setattr(sink, "send", send_later)
    monkeypatch.setattr(recorder, "flush", flush)
    client = program.client(**recorder.start(task="greet").headers())
    await asyncio.gather(*(client.chat.completions.create(model="agent", messages=HELLO) for _ in range(20)))
    assert len(waits) == 1, "each answer waits in a thread of its own, of which there are only a few"
    waits.clear()
    recorder._delivery.healthy = False
    await client.chat.completions.create(model="agent", messages=HELLO)
    assert waits == [], "that the broker is away is known"
    go.set()


@pytest.mark.parametrize("cut", [1, 7, 64, 10_000])
async def test_a_stream_cut_anywhere_is_the_same_turn_without_hidden_fields(
    recorder: Recorder, sink: MemorySink, cut: int
) -> None:
    whole = sse(streamed()).read()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(whole), cut):
            yield whole[start : start + cut]

    program = Program(recorder, Server(lambda body: httpx.Response(200, headers=STREAM, content=pieces())))
    with recorder.episode(task="greet") as episode:
        stream = await program.client(**episode.headers()).chat.completions.create(
            model="agent", messages=HELLO, stream=True
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello there"
    assert all(chunk.usage is None and chunk.choices[0].logprobs is None for chunk in chunks)
    (turn,) = turns(recorder, sink)
    assert_whole(turn)
    assert turn.streamed


async def test_words_alone_are_the_users_reply(recorder: Recorder, sink: MemorySink, program: Program) -> None:
    opened = (await program.http.post("/rollbus/episodes", json={"task": "greet"})).json()["id"]
    for path, body in ((f"episodes/{opened}/reward", {}), ("feedback", {"episode": opened})):
        answer = await program.http.post(f"/rollbus/{path}", json={**body, "comment": "no, the parcel"})
        assert answer.json()["event_id"], answer.text
    reports = [event for event in recorded_events(recorder, sink) if isinstance(event, RewardReported)]
    assert [(report.name, report.signal, report.value) for report in reports] == [("next_turn", "reply", None)] * 2


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("episodes", "{}", "an episode needs a task"),
        ("episodes", '{"task": "t", "tsk": 1}', "unknown fields tsk"),
        ("episodes", '{"task": "t", "\\ud800": 1}', "unknown fields ?"),
        ("episodes", "[1]", "send a JSON object"),
        ("episodes", "{", "Expecting property name"),
        ("episodes", '{"task": "t", "group_size": "8"}', "group_size is '8'; it must be a whole number"),
        ("episodes", f'{{"task": "t", "group_size": {1 << 70}}}', "it must be a whole number of 64 bits"),
        ("episodes", '{"task": "t", "labels": ["a"]}', "labels is ['a']; it must be an object"),
        ("episodes", '{"task": "t", "agent": 5}', "agent is 5; it must be text"),
        ("feedback", '{"value": 1}', "feedback is about one episode"),
        ("feedback", '{"value": 1, "episode": "e", "alias": "a"}', "feedback is about one episode"),
        ("feedback", '{"value": 1, "episode": ""}', "feedback is about one episode"),
        ("feedback", '{"value": 1, "alias": 7}', "feedback is about one episode"),
        ("feedback", '{"value": "good", "alias": "a"}', "a reward needs a number"),
        ("feedback", '{"comment": " ", "alias": "a"}', "this report says nothing"),
        ("feedback", '{"signal": "", "alias": "a"}', "this report says nothing"),
        ("feedback", '{"comment": "no", "alias": "a", "nme": "x"}', "nme; a reward has value, comment, key, name"),
        ("feedback", f'{{"value": {10**400}, "alias": "a"}}', "a reward is finite, not inf"),
        ("feedback", '{"value": 1, "alias": "a", "nme": "x"}', "nme; a reward has value, comment, key, name"),
    ],
)
async def test_an_invalid_request_gets_a_reason(program: Program, path: str, body: str, message: str) -> None:
    answer = await program.http.post(f"/rollbus/{path}", content=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("reward", '{"value": 1, "name": {}}', "name is {}; it must be text"),
        ("reward", '{"value": NaN}', "a reward is finite, not nan"),
        ("reward", '{"value": true}', "a reward needs a number"),
        ("end", '{"stop_reason": "done"}', "stop_reason is 'done'; choose one of completed, "),
    ],
)
async def test_an_invalid_call_of_an_episode_is_refused_alone(
    recorder: Recorder, sink: MemorySink, program: Program, path: str, body: str, message: str
) -> None:
    opened = (await program.http.post("/rollbus/episodes", json={"task": "greet", "example_id": 7})).json()["id"]
    answer = await program.http.post(f"/rollbus/episodes/{opened}/{path}", content=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    rewarded = await program.http.post(f"/rollbus/episodes/{opened}/reward", json={"value": 1, "key": 5, "name": None})
    assert rewarded.json()["event_id"]
    assert (await program.http.post(f"/rollbus/episodes/{opened}/end")).status_code == 204
    assert [type(event) for event in recorded_events(recorder, sink)][:3] == [
        EpisodeStarted,
        RewardReported,
        EpisodeEnded,
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_half_a_character_passes_both_ways_as_it_came(recorder: Recorder, sink: MemorySink, stream: bool) -> None:
    program = Program(recorder, Server(lambda body: half_answered(stream=stream)), task="t")
    body = (
        f'{{"model": "m", "stream": {json.dumps(stream)}, "messages": [{{"role": "user", "content": "cut \\ud83d"}}]}}'
    )
    answer = await program.http.post("/v1/chat/completions", content=body)
    assert (answer.status_code, "cut \\ud83d" in answer.text) == (200, True)
    assert answer.text.endswith("data: [DONE]\n\n") == stream
    assert json.loads(program.seen[0].content)["messages"][0]["content"] == "cut \ud83d"
    (turn,) = turns(recorder, sink)
    assert turn.trainable
    assert turn.completion.content == "cut ?"


def half_answered(*, stream: bool) -> httpx.Response:
    """An answer whose text ends in the middle of a character."""
    if not stream:
        return httpx.Response(200, text=json.dumps(completion(content="cut \ud83d")))
    chunks = streamed()
    chunks[1]["choices"][0]["delta"]["content"] = "cut \ud83d"
    chunks[2]["choices"][0]["delta"]["content"] = ""
    return sse(chunks)


async def test_health_says_what_was_recorded(recorder: Recorder, program: Program) -> None:
    with recorder.episode(task="greet"):
        pass
    health = json.loads((await program.http.get("/rollbus/health")).text)
    assert health["counters"]["episodes_started"] == 1
    metrics = await program.http.get("/rollbus/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "rollbus_producer_episodes_started_total" in metrics.text


async def test_an_event_of_a_stream_keeps_its_name_and_id(recorder: Recorder, sink: MemorySink) -> None:
    event = {"type": "response.completed", "response": {"id": "resp-1", "model": "agent@3", "output": []}}
    text = f": hello\n\nevent: response.completed\nid: 3\ndata: {json.dumps(event, separators=(',', ':'))}\n\n"
    server = Server(lambda body: httpx.Response(200, headers=STREAM, content=text.encode()))
    program = Program(recorder, server, task="t")
    passed = await program.http.post("/v1/responses", json={"model": "agent", "input": "Say hello", "stream": True})
    assert passed.text == text
    assert len(turns(recorder, sink)) == 1
