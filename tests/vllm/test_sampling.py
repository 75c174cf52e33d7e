"""What vLLM does that changes what is trained: each way to ask it gives the tokens and log-probs of the learner."""

import asyncio
from typing import Any

import openai
import pytest
from torch import nn

from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids
from rollbus.trainer.art_server.learner.agreement import measure
from tests.vllm.recording import MODEL, QUESTION, open_agent
from tests.vllm.server import BLOCK_TOKENS, MAX_ROWS, UNSTATED_SETTINGS, Vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3600)]

ROUNDING = 1e-4
WAYS: dict[str, dict[str, Any]] = {
    "nothing named": {},
    "another temperature": {"temperature": 0.7},
    "two answers": {"n": 2},
    "a stream": {"stream": True},
    "two answers in a stream": {"n": 2, "stream": True},
}


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
async def test_recorded_log_probs_are_the_learners(vllm: Vllm, network: nn.Module, options: dict[str, Any]) -> None:
    """With processed log-probs, and although `generation_config.json` names a temperature, top_p and top_k."""
    async with open_agent(vllm.url) as agent:
        for seed in range(3):
            await agent.ask(seed=seed, **options)
        turns, recorded_turns = agent.cut(), agent.turns
    assert len(turns) == 3 * options.get("n", 1)
    assert {turn.policy_version for turn in turns} == {0}
    assert {(turn.top_p, turn.top_k) for turn in recorded_turns} == {(1.0, -1)}, "the recorder named them"
    assert measure(network, "shop", 0, turns).difference < ROUNDING


async def test_a_client_that_names_nothing_samples_as_generation_config_says(vllm: Vllm) -> None:
    messages: Any = [{"role": "user", "content": QUESTION}]
    answers = []
    async with openai.AsyncOpenAI(base_url=vllm.url, api_key="none") as client:
        for settings in ({}, UNSTATED_SETTINGS):
            answer = await client.chat.completions.create(
                model=f"{MODEL}@0", messages=messages, max_tokens=12, seed=3, logprobs=True, extra_body=settings
            )
            logprobs = answer.choices[0].logprobs
            assert logprobs is not None
            answers.append([(token.token, token.logprob) for token in logprobs.content or ()])
    assert answers[0] == answers[1]


async def test_the_ids_of_a_stream_are_those_of_the_whole_answer(vllm: Vllm) -> None:
    async with open_agent(vllm.url) as agent:
        await agent.ask(seed=5)
        await agent.ask(seed=5, stream=True)
        whole, streamed = agent.cut()
    assert whole.completion_token_ids == streamed.completion_token_ids
    assert whole.prompt_token_ids == streamed.prompt_token_ids
    assert decode_logprobs(whole.logprobs) == pytest.approx(decode_logprobs(streamed.logprobs), abs=ROUNDING)


async def test_the_token_that_completed_a_stop_string_is_trained(vllm: Vllm, network: nn.Module) -> None:
    """The text ends before that token."""
    async with open_agent(vllm.url) as agent:
        text = (await agent.ask(seed=5, max_tokens=24)).choices[0].message.content
        stop = text[len(text) // 2]
        stopped = (await agent.ask(seed=5, max_tokens=24, stop=[stop])).choices[0]
        whole, turn = agent.cut()
    assert (stopped.message.content, stopped.finish_reason) == (text.partition(stop)[0], "stop")
    ids = decode_token_ids(turn.completion_token_ids)
    assert list(ids) == list(decode_token_ids(whole.completion_token_ids))[: len(ids)]
    assert measure(network, "shop", 0, [turn]).difference < ROUNDING


async def test_a_prompt_that_was_cached_is_recorded_whole(vllm: Vllm, network: nn.Module) -> None:
    async with open_agent(vllm.url) as agent:
        await agent.ask(question=QUESTION * 15, seed=1)
        hits = vllm.count("prefix_cache_hits_total")
        await agent.ask(question=QUESTION * 15, seed=2)
        first, second = agent.cut()
    assert vllm.count("prefix_cache_hits_total") >= hits + BLOCK_TOKENS
    assert first.prompt_token_ids == second.prompt_token_ids
    assert measure(network, "shop", 0, [first, second]).difference < ROUNDING


async def test_an_answer_that_was_preempted_keeps_the_log_probs_of_what_it_sampled(
    vllm: Vllm, network: nn.Module
) -> None:
    preempted = vllm.count("num_preemptions_total")
    async with open_agent(vllm.url) as agent:
        await asyncio.gather(*(agent.ask(seed=seed, max_tokens=200) for seed in range(MAX_ROWS)))
        turns = agent.cut()
    assert vllm.count("num_preemptions_total") > preempted
    assert measure(network, "shop", 0, turns).difference < ROUNDING


async def test_a_version_that_was_not_loaded_is_refused_by_name(vllm: Vllm) -> None:
    async with open_agent(vllm.url) as agent:
        with pytest.raises(openai.NotFoundError, match=f"{MODEL}@99"):
            await agent.ask(f"{MODEL}@99")
