"""Agents on LiteLLM, after its documentation: a router with a fall-back, and retrieval in addition to completions."""

from typing import Any

import litellm
import pytest
from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER

from tests.agents.conftest import World
from tests.agents.model_server import ModelServer

pytestmark = pytest.mark.filterwarnings("ignore")  # LiteLLM reads deprecated attributes of its own answers


async def test_a_router_that_falls_back(world: World, server: ModelServer) -> None:
    options = {"api_key": "k", "api_base": server.url, "max_retries": 0}
    router = litellm.Router(
        model_list=[
            {"model_name": name, "litellm_params": {"model": "openai/agent", **options}} for name in ("main", "spare")
        ],
        fallbacks=[{"main": ["spare"]}],
        num_retries=0,
        disable_cooldowns=True,
    )

    async def play(question: str) -> None:
        messages: Any = [{"role": "user", "content": question}]
        await router.acompletion(model="main", messages=messages)
        stream: Any = await router.acompletion(model="main", messages=messages, stream=True)
        async for _ in stream:
            pass

    await world.play(play)
    await GLOBAL_LOGGING_WORKER.flush()
    world.compare()


async def test_retrieval_with_an_embedding_beside_the_completion(world: World, server: ModelServer) -> None:
    options: Any = {"api_key": "k", "api_base": server.url, "max_retries": 0, "num_retries": 0}

    async def play(question: str) -> None:
        await litellm.aembedding(model="openai/embedder", input=[question], **options)
        await litellm.acompletion(model="openai/agent", messages=[{"role": "user", "content": question}], **options)

    await world.play(play)
    await GLOBAL_LOGGING_WORKER.flush()
    assert len(world.compare()) == 3
