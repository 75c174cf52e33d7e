"""A real OpenAI client inside an attempt: what its calls sample together never exceeds what was paid for."""

import asyncio
import json
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from openai.types import CompletionUsage

from rollbus.producers import MemorySink, init
from rollbus.resample.allowance import Allowance, limit_client
from rollbus.resample.attempts import Attempt, Resampler
from rollbus.schemas.errors import RejectedError
from rollbus.schemas.records.events import EpisodeEnded
from rollbus.schemas.records.groups import ResampleRequested

CHAT_REQUEST: dict[str, Any] = {"model": "agent", "messages": [{"role": "user", "content": "go"}]}


class Server:
    """Samples as many tokens as it is let, or as it has to say; knows what it was asked."""

    def __init__(self, wants: int = 1_000, status: int = 200) -> None:
        self.wants, self.status, self.sampled_tokens, self.calls = wants, status, 0, 0
        self.priorities: list[str | None] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.calls += 1
        self.priorities.append(request.headers.get("rollbus-priority"))
        if self.status != 200:
            return httpx.Response(self.status, json={"error": {"message": "no"}})
        limits = [body[name] for name in ("max_completion_tokens", "max_tokens", "max_output_tokens") if name in body]
        limits = [limit for limit in limits if limit >= 0]  # some servers take -1 for no limit
        tokens = body.get("n", 1) * min([self.wants, *limits])
        self.sampled_tokens += tokens
        usage = {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens}
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x"}}
        completion = {"id": "c", "object": "chat.completion", "created": 0, "model": "agent", "choices": [choice]}
        return httpx.Response(200, json={**completion, "usage": usage})


def client_of(server: Server) -> openai.OpenAI:
    transport = httpx.Client(transport=httpx.MockTransport(server))
    return openai.OpenAI(base_url="http://server/v1", api_key="none", http_client=transport)


def play(client: Any, allowance: Allowance, calls: int = 10, **fields: Any) -> int:
    """Call until nothing may be sampled any more; return how many calls were let through."""
    for number in range(calls):
        try:
            client.chat.completions.create(**CHAT_REQUEST, **fields)
        except RejectedError:
            return number
    return calls


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 40},
        {"max_completion_tokens": 7},
        {"n": 3},
        {"max_tokens": -1},
        {"extra_body": {"max_tokens": 900}},
        {"extra_body": {"n": 3, "max_completion_tokens": 900}, "max_tokens": 20},
    ],
)
@pytest.mark.parametrize("wants", [1, 9, 1_000])
def test_calls_together_sample_no_more_than_is_allowed_and_leave_the_rest(fields: dict[str, Any], wants: int) -> None:
    server, allowance = Server(wants), Allowance(50)
    calls = play(limit_client(client_of(server), allowance), allowance, **fields)
    assert 0 < server.sampled_tokens <= 50
    assert allowance.tokens_left == 50 - server.sampled_tokens
    assert calls == server.calls


def test_usage_in_two_vocabularies_is_given_back_once() -> None:
    """Some gateways answer chat completions with the field of `/responses` as well, and leave it at 0."""
    for also in (10, 0):
        allowance = Allowance(50)
        taken = allowance.take({"max_tokens": 30}, ("max_tokens",))
        usage = CompletionUsage.model_validate(
            {"prompt_tokens": 3, "completion_tokens": 10, "total_tokens": 13, "output_tokens": also}
        )
        allowance.settle(taken, SimpleNamespace(usage=usage))
        assert allowance.tokens_left == 40


def test_a_copy_of_the_client_shares_the_allowance() -> None:
    server, allowance = Server(), Allowance(50)
    client = limit_client(client_of(server), allowance)
    play(client.with_options(timeout=3, max_retries=5), allowance)
    assert play(client, allowance) == 0
    assert server.sampled_tokens == 50


@pytest.mark.parametrize(("status", "left", "unsure"), [(400, 50, False), (500, 0, True)])
def test_a_failed_call_returns_only_unsampled_tokens_without_a_retry(status: int, left: int, unsure: bool) -> None:
    server, allowance = Server(status=status), Allowance(50)
    with pytest.raises(openai.APIStatusError):
        limit_client(client_of(server), allowance).chat.completions.create(**CHAT_REQUEST)
    assert (server.calls, allowance.tokens_left, allowance.unsure) == (1, left, unsure)


def test_a_refused_call_without_a_limit_raises_the_servers_error() -> None:
    client = limit_client(client_of(Server(status=404)), Allowance(None))
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**CHAT_REQUEST)


def test_other_fields_of_an_extra_body_reach_the_server() -> None:
    bodies: list[dict[str, Any]] = []

    def serve(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return Server()(request)

    transport = httpx.Client(transport=httpx.MockTransport(serve))
    plain = openai.OpenAI(base_url="http://server/v1", api_key="none", http_client=transport)
    extra = {"top_k": 5, "max_tokens": 900}
    limit_client(plain, Allowance(50)).chat.completions.create(**CHAT_REQUEST, extra_body=extra)
    assert bodies == [{**CHAT_REQUEST, "top_k": 5, "max_tokens": 50}]
    assert extra == {"top_k": 5, "max_tokens": 900}


@pytest.mark.parametrize("tokens", [50, None])
def test_calls_of_an_attempt_wait_behind_those_of_live_traffic(tokens: int | None) -> None:
    server = Server()
    plain = client_of(server)
    limit_client(plain, Allowance(tokens)).chat.completions.create(**CHAT_REQUEST, extra_headers={"x-own": "kept"})
    plain.chat.completions.create(**CHAT_REQUEST)
    assert server.priorities == ["1", None]


def test_a_client_of_another_kind_without_a_limit_is_returned_as_it_is() -> None:
    other = type("Fake", (), {})()
    assert limit_client(other, Allowance(None)) is other


def test_other_calls_take_nothing_from_the_allowance() -> None:
    client, allowance = client_of(Server()), Allowance(5)
    limit_client(client, allowance).post("/models/load", cast_to=object, body={"model": "agent"})
    assert (allowance.tokens_left, allowance.unsure) == (5, False)


def test_a_client_that_cannot_be_limited_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="Fake has no method `post`"):
        limit_client(type("Fake", (), {})(), Allowance(5))


async def test_an_async_client_with_calls_side_by_side_stays_within() -> None:
    server, allowance = Server(wants=8), Allowance(50)
    transport = httpx.AsyncClient(transport=httpx.MockTransport(server))
    plain = openai.AsyncOpenAI(base_url="http://server/v1", api_key="none", http_client=transport)
    client = limit_client(plain, allowance)
    calls = (client.chat.completions.create(**CHAT_REQUEST, max_tokens=8) for _ in range(20))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert server.sampled_tokens <= 50
    assert any(isinstance(outcome, RejectedError) for outcome in outcomes)
    assert not any(
        isinstance(outcome, BaseException) and not isinstance(outcome, RejectedError) for outcome in outcomes
    )


@pytest.mark.parametrize(("status", "ends"), [(200, "completed"), (500, "error")])
async def test_an_attempt_that_may_have_sampled_unseen_ends_as_an_error(status: int, ends: str) -> None:
    server, sink = Server(status=status), MemorySink()
    recorder = init(sink=sink)

    def agent(attempt: Attempt) -> None:
        client = attempt.wrap(client_of(server))
        for _ in range(3):
            with suppress(RejectedError, openai.APIStatusError):
                client.chat.completions.create(**CHAT_REQUEST)

    resampler = Resampler(agent, recorder, clock_ms=lambda: 0)
    await resampler.wait_for_room()
    resampler.begin(
        ResampleRequested(
            episode_id="r1", run_id="main", trajectory_id="t", attempt=1, task="play", max_tokens=20,
            requested_at_ms=0, useful_until_ms=1,
        )
    )  # fmt: skip
    await resampler.finish()
    await asyncio.to_thread(recorder.close)
    assert (server.calls, server.sampled_tokens) == (1, 20 if status == 200 else 0)
    assert [record.stop_reason for record in sink.records() if isinstance(record, EpisodeEnded)] == [ends]
