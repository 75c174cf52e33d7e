"""What the trainer computes is what the sampler reported: over HTTP, after updates, with tools and several turns."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.trainer.backends.protocol import TrainRequest, TrainTrajectory, TurnTokens
from rollbus.trainer.train_config import TrainConfig
from tests.services.art.fixtures import MODEL, ArtServer, Launcher

pytestmark = pytest.mark.services

TOLERANCE = 1e-4
TOOLS: list[Any] = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 3}'}}
KINDS: dict[str, dict[str, Any]] = {"all parameters": {}, "adapters": {"lora": {"rank": 4}}}


@pytest.fixture(scope="module")
def base_model(art_launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Room for several turns."""
    folder = tmp_path_factory.mktemp("base") / "model"
    return art_launcher.make_model(folder, "system user assistant tool choose a letter", max_tokens=320, seed=6)


@pytest.fixture(params=KINDS, ids=str)
def server(
    request: pytest.FixtureRequest, art_launcher: Launcher, base_model: Path, tmp_path: Path
) -> Iterator[ArtServer]:
    options = {"logprobs_mode": "processed", **KINDS[request.param]}
    art_server = ArtServer(art_launcher, base_model, tmp_path / "data", options=options)
    art_server.start()
    yield art_server
    art_server.stop()


async def conversation(client: openai.AsyncOpenAI, seed: int, temperature: float) -> tuple[TurnTokens, ...]:
    """Three turns with a tool between them; a turn that does not extend the tokens before it starts a history."""
    messages: list[Any] = [{"role": "user", "content": "choose"}]
    turns: list[TurnTokens] = []
    shown: list[int] = []
    for number in range(3):
        answer: Any = await client.chat.completions.create(
            model=MODEL,
            messages=messages,
            tools=TOOLS,
            temperature=temperature,
            max_tokens=12,
            seed=10 * seed + number,
            logprobs=True,
        )
        (choice,) = answer.choices
        extends = answer.prompt_token_ids[: len(shown)] == shown
        turns.append(
            TurnTokens(
                encode_token_ids(answer.prompt_token_ids),
                encode_token_ids(choice.token_ids),
                encode_logprobs(entry.logprob for entry in choice.logprobs.content),
                policy_version=int(answer.model.partition("@")[2]),
                history=0 if not turns else turns[-1].history + (not extends),
                temperature=temperature,
                logprob_mode=answer.rollbus["logprobs_mode"],
            )
        )
        shown = [*answer.prompt_token_ids, *choice.token_ids]
        messages.append({"role": "assistant", "content": choice.message.content})
        if number == 0:  # as an agent that called it itself
            messages[-1] = {"role": "assistant", "content": None, "tool_calls": [CALL]}
            messages.append({"role": "tool", "tool_call_id": "c1", "content": "a door"})
        else:
            messages.append({"role": "user", "content": "again"})
    return tuple(turns)


async def test_the_trainers_log_probs_are_the_samplers(server: ArtServer) -> None:
    backend = server.client()
    async with openai.AsyncOpenAI(base_url=server.model_url, api_key="none") as client:
        for base in range(2):  # before an update and after it
            temperatures = (1.0, 0.7, 1.3, 1.0)
            sampled = await asyncio.gather(*(conversation(client, 7 * base + i, t) for i, t in enumerate(temperatures)))
            trajectories = tuple(
                TrainTrajectory(f"{base}-{i}", f"{base}", (-1.0) ** i, float(i % 2 == 0), turns)
                for i, turns in enumerate(sampled)
            )
            assert {turn.policy_version for trajectory in trajectories for turn in trajectory.turns} == {base}
            request = TrainRequest(f"b{base}", "main", MODEL, base, trajectories, TrainConfig(learning_rate=3e-3))
            result = await backend.wait(await backend.submit(request), 0.1)
            await backend.promote(result.version)
            assert (result.version, len(result.trained_ids), dict(result.dropped)) == (base + 1, 4, {})
            assert result.metrics["logprob_difference_max"] <= TOLERANCE
            assert result.metrics["ratio_max"] == pytest.approx(1, abs=TOLERANCE)
    await backend.close()
