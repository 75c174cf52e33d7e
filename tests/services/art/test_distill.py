"""Hints, over the server: log-probs under the hinted model are in the batch's advantages, once, and in its metrics."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.trainer.backends.memory import MemoryBackend
from rollbus.trainer.backends.protocol import Distillation, TrainConfig, TrainRequest, TrainTrajectory, TurnTokens
from tests.services.art.fixtures import MODEL, ArtServer, Launcher

pytestmark = pytest.mark.services

HINT = "no, choose a letter"


@pytest.fixture
def server(art_launcher: Launcher, tmp_path: Path) -> Iterator[ArtServer]:
    base = art_launcher.make_model(tmp_path / "base", "system user assistant choose a letter", max_tokens=320, seed=6)
    art_server = ArtServer(art_launcher, base, tmp_path / "data", options={"lora": {"rank": 4}})
    art_server.start()
    yield art_server
    art_server.stop()


async def sampled_turn(server: ArtServer, seed: int, *, hint: str = "") -> TurnTokens:
    async with httpx.AsyncClient(timeout=120) as client:
        body = {"model": MODEL, "max_tokens": 6, "temperature": 1, "seed": seed, "logprobs": True}
        chat = [{"role": "user", "content": "choose"}]
        answer = (await client.post(f"{server.model_url}/chat/completions", json={**body, "messages": chat})).json()
    (choice,) = answer["choices"]
    return TurnTokens(
        encode_token_ids(answer["prompt_token_ids"]),
        encode_token_ids(choice["token_ids"]),
        encode_logprobs(entry["logprob"] for entry in choice["logprobs"]["content"]),
        policy_version=int(answer["model"].partition("@")[2]),
        hint=hint,
    )


async def test_a_step_learns_from_hints_once_and_reports_it(server: ArtServer) -> None:
    turns = await asyncio.gather(*(sampled_turn(server, seed, hint=HINT if seed else "") for seed in range(3)))
    trajectories = tuple(TrainTrajectory(f"t{at}", f"t{at}", 0.0, 0.0, (turn,)) for at, turn in enumerate(turns))
    config = TrainConfig(learning_rate=1e-3, distill=Distillation(reward_weight=0.0))
    request = TrainRequest("hinted", "main", MODEL, 0, trajectories, config)
    backend = server.client()
    for _ in range(2):
        await backend.submit(request)
        result = await backend.wait("hinted")
    assert (result.version, len((await backend.versions()).known)) == (1, 2)
    assert (result.trained_ids, dict(result.dropped)) == (("t1", "t2"), {"t0": "no_signal"})
    tokens = sum(len(turn.completion_token_ids) // 4 for turn in turns[1:])
    metrics = result.metrics
    assert (metrics["distilled_turns"], metrics["distilled_tokens"], metrics["tokens_trained"]) == (2, tokens, tokens)
    assert metrics["distilled_gain_absolute"] > 0
    assert 0 < metrics["distill_seconds"] < metrics["update_seconds"]
    await backend.close()


async def test_a_backend_without_a_model_refuses_hints_by_name() -> None:
    request = TrainRequest("hinted", "main", "agent", 0, (), TrainConfig(distill=Distillation()))
    backend = MemoryBackend()
    await backend.submit(request)
    with pytest.raises(UnavailableError, match="cannot `distill`"):
        await backend.wait("hinted")
