"""A judge asks an OpenAI-compatible endpoint, and its failures name the endpoint."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from rollbus.schemas.errors import RejectedError, UnavailableError
from rollbus.schemas.records.config import RewardConfig, ScoringConfig
from rollbus.schemas.topics import SCORES, TRAJECTORIES
from rollbus.streams.rewards.endpoint import Endpoint
from rollbus.streams.stages.scoring.stage import ScoringStage
from tests.builders import make_trajectory
from tests.flow.in_memory import Log, Reader

Handler = Callable[[Any], Awaitable[Any]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """A server on a free port of the loopback."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def test_a_judge_grades_through_the_scoring_stage() -> None:

    seen: list[Any] = []

    async def handler(request: Any) -> Any:
        seen.append((request.headers["Authorization"], await request.json()))
        return web.json_response({"choices": [{"message": {"content": "good\n8"}}]})

    config = ScoringConfig(rewards=(RewardConfig(type="judge", name="quality"),))
    async with serving(handler) as url:
        stage = ScoringStage(config, keep_ms=1, ask=Endpoint(url, "judge-model", api_key="secret"))
        log, reader = Log(), Reader(stage, 0, stage.new_state())
        log.append(TRAJECTORIES, "hint", make_trajectory(text="centre"))
        await reader.run(log)
    (score,) = log.records(SCORES)
    assert (score.value, score.components) == (0.8, {"quality": 0.8})
    ((authorization, body),) = seen
    assert (authorization, body["model"], body["temperature"]) == ("Bearer secret", "judge-model", 0)


@pytest.mark.parametrize(
    ("status", "error"), [(503, UnavailableError), (429, UnavailableError), (400, RejectedError), (200, RejectedError)]
)
async def test_a_refusal_names_the_endpoint_and_whether_to_try_again(status: int, error: type[Exception]) -> None:

    async def handler(request: Any) -> Any:
        return web.json_response({"error": "no"}, status=status)

    async with serving(handler) as url:
        with pytest.raises(error, match=r"127\.0\.0\.1"):
            await Endpoint(url, "m")([{"role": "user", "content": "?"}], {})


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, b"<html>log in</html>", "answered without JSON: <html>"),
        (200, b'{"choices": "\xff"}', "answered without a choice"),
        (200, b"[" * 100_000, "answered without JSON"),
        (200, b"", "answered without JSON"),
        (400, b"\xff\xfe no", "answered 400: .* no"),
    ],
)
async def test_an_answer_that_cannot_be_read_is_a_refusal_that_names_the_endpoint(
    status: int, body: bytes, words: str
) -> None:

    async def handler(request: Any) -> Any:
        return web.Response(body=body, status=status)

    async with serving(handler) as url:
        with pytest.raises(RejectedError, match=rf"127\.0\.0\.1.* {words}"):
            await Endpoint(url, "m")([], {})


async def test_an_absent_server_is_unavailable() -> None:

    with pytest.raises(UnavailableError, match="gave no answer"):
        await Endpoint("http://127.0.0.1:9/v1", "m")([], {})
