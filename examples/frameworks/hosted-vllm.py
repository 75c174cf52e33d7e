"""LiteLLM's own provider for vLLM, blocking and asynchronous."""

import asyncio
import os
from typing import Any

import litellm

OPTIONS: dict[str, Any] = {"model": "hosted_vllm/agent", "messages": [{"role": "user", "content": "How many bolts?"}]}


async def ask() -> None:
    """Ask asynchronously, once streamed."""
    await litellm.acompletion(**OPTIONS, api_base=os.environ["OPENAI_BASE_URL"])
    async for _ in await litellm.acompletion(**OPTIONS, api_base=os.environ["OPENAI_BASE_URL"], stream=True):
        pass


def main() -> None:
    """Ask in every way."""
    litellm.completion(**OPTIONS, api_base=os.environ["OPENAI_BASE_URL"])
    for _ in litellm.completion(**OPTIONS, api_base=os.environ["OPENAI_BASE_URL"], stream=True):
        pass
    asyncio.run(ask())
