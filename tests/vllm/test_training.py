"""What vLLM sampled is trained by the model service next to it, whose adapters vLLM serves; what differs is refused."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import openai
import pytest
from torch import nn

from benchmarks.gpu.server import Server
from rollbus.schemas.errors import RejectedError
from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.trainer.art_server.learner.agreement import measure
from rollbus.trainer.backends.protocol import TrainResult, TurnTokens
from tests.vllm.recording import MODEL, QUESTION, open_agent, train
from tests.vllm.server import Vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3600)]

EPISODES = 8
ROUNDING = 1e-4
PLAIN = {"temperature": 1.0, "top_p": 1.0, "extra_body": {"top_k": -1}}
HEAD = 2
"""The version that the second step makes."""


@dataclass(frozen=True, slots=True)
class Step:
    """What was sampled from a version, and what became of it."""

    turns: Sequence[TurnTokens]
    result: TrainResult


@pytest.fixture(scope="module")
def steps(art_server: Server, vllm: Vllm) -> tuple[Step, Step]:
    """Two steps: version 1 from answers of the base model, version 2 from those of the adapter of version 1."""
    return asyncio.run(make_steps(vllm, art_server))


async def make_steps(vllm: Vllm, art_server: Server) -> tuple[Step, Step]:
    client = art_server.client()
    try:
        first = await make_step(vllm, client, base=0)
        vllm.load_adapter(f"{MODEL}@1", first.result.checkpoint)
        return first, await make_step(vllm, client, base=1)
    finally:
        await client.close()


async def make_step(vllm: Vllm, client: Any, *, base: int) -> Step:
    turns = await play(vllm, f"{MODEL}@{base}")
    return Step(turns, await train(client, turns, base=base, name=f"step-{base}"))


async def play(vllm: Vllm, model: str) -> list[TurnTokens]:
    async with open_agent(vllm.url) as agent:
        await asyncio.gather(*(agent.ask(model, seed=seed) for seed in range(EPISODES)))
        return agent.cut()


def test_turns_recorded_at_vllm_are_trained_as_they_were_sampled(steps: tuple[Step, Step]) -> None:
    step, _ = steps
    assert (step.result.version, len(step.result.trained_ids), dict(step.result.dropped)) == (1, EPISODES, {})
    assert step.result.metrics["source_difference_max"] < ROUNDING
    assert step.result.metrics["ratio_max"] == pytest.approx(1, abs=1e-3)


def test_answers_under_the_name_of_an_adapter_are_of_its_version(steps: tuple[Step, Step], network: nn.Module) -> None:
    """Asked for the same prompts and seeds, so what version 0 has cached of them is not taken."""
    _, step = steps
    assert {turn.policy_version for turn in step.turns} == {1}
    assert (step.result.version, len(step.result.trained_ids)) == (HEAD, EPISODES)
    assert step.result.metrics["source_difference_max"] < ROUNDING
    assert measure(network, "shop", 0, step.turns).difference > 0.1, "the weights have arrived"


async def test_an_adapter_leaves_the_versions_beside_it_alone(
    steps: tuple[Step, Step], vllm: Vllm, network: nn.Module
) -> None:
    older, newer = await asyncio.gather(play(vllm, f"{MODEL}@0"), play(vllm, f"{MODEL}@1"))
    assert measure(network, "shop", 0, older).difference < ROUNDING
    assert {turn.policy_version for turn in newer} == {1}
    assert sorted(turn.completion_token_ids for turn in older) == sorted(
        turn.completion_token_ids for turn in steps[0].turns
    )


async def test_another_versions_weights_under_a_versions_name_are_refused(
    steps: tuple[Step, Step], vllm: Vllm, art_server: Server
) -> None:
    vllm.load_adapter(f"{MODEL}@{HEAD}", steps[0].result.checkpoint)
    turns = await play(vllm, f"{MODEL}@{HEAD}")
    await require_refusal(art_server, turns, "wrong version", match=r"from version 2 .* they agree with version 1,")


async def test_tokens_that_generation_config_cut_away_are_refused_by_name(
    steps: tuple[Step, Step], vllm: Vllm, art_server: Server
) -> None:
    """As of a client without the recorder, whose answers somebody hands in as sampled at temperature 1."""
    turns = await sample_unrecorded(vllm)
    match = r"at temperature 0\.\d each is as high .* the server left tokens out .*generation_config\.json"
    await require_refusal(art_server, turns, "cut", match=match)


async def test_a_temperature_that_is_not_stated_is_refused_by_name(
    steps: tuple[Step, Step], vllm: Vllm, art_server: Server
) -> None:
    turns = await sample_unrecorded(vllm, **{**PLAIN, "temperature": 0.5})
    await require_refusal(art_server, turns, "hot", match=r"they agree at temperature 0\.5")


async def test_a_prompt_by_another_template_than_the_servers_is_refused_by_name(
    steps: tuple[Step, Step], vllm: Vllm, art_server: Server
) -> None:
    """As of an agent that makes the token ids itself, without the line that opens the answer."""
    turns = await sample_unrecorded(vllm, **PLAIN)
    shorter = [replace(turn, prompt_token_ids=turn.prompt_token_ids[:-8]) for turn in turns]
    await require_refusal(art_server, shorter, "template", match=r"read another prompt \(a chat template of its own\)")


async def sample_unrecorded(vllm: Vllm, **options: Any) -> list[TurnTokens]:
    """Ask without the recorder; the turns are named as plainly sampled from version 0."""
    extra = {"return_token_ids": True, **options.pop("extra_body", {})}
    messages: Any = [{"role": "user", "content": QUESTION}]
    turns = []
    async with openai.AsyncOpenAI(base_url=vllm.url, api_key="none") as client:
        for seed in range(EPISODES):
            answer: Any = await client.chat.completions.create(
                model=f"{MODEL}@0",
                messages=messages,
                max_tokens=12,
                seed=seed,
                logprobs=True,
                extra_body=extra,
                **options,
            )
            (choice,) = answer.choices
            logprobs = encode_logprobs(token.logprob for token in choice.logprobs.content)
            prompt, completion = encode_token_ids(answer.prompt_token_ids), encode_token_ids(choice.token_ids)
            turns.append(TurnTokens(prompt, completion, logprobs, policy_version=0))
    return turns


async def require_refusal(art_server: Server, turns: Sequence[TurnTokens], source: str, *, match: str) -> None:
    """The batch is refused before anything moves; a source of its own is held against the version that it names."""
    client = art_server.client()
    try:
        named = [replace(turn, source=source) for turn in turns]
        with pytest.raises(RejectedError, match=match):
            await train(client, named, base=HEAD, name=source.replace(" ", "-"), most=0.01)
        assert (await client.versions()).head == HEAD
    finally:
        await client.close()
