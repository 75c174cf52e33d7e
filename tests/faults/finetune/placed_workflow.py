"""A workflow whose answer depends on the weights, and on which attempt it is: epoch, example and generation.

`seeded_workflow`, which is copied with it, brings the evaluator.
"""

import os
from collections.abc import AsyncIterator
from typing import Any
from zlib import crc32

from nat.builder.builder import Builder
from nat.builder.framework_enum import LLMFrameworkEnum
from nat.builder.function_info import FunctionInfo
from nat.cli.register_workflow import register_function
from nat.data_models.function import FunctionBaseConfig

from rollbus.harness.bus.run_view import Attempt
from rollbus.producers.episode import context

EXAMPLES, GENERATIONS, EPOCHS, TRIES = 6, 4, 3, 4
MAX_TOKENS = 6
SEEDS = {
    Attempt(os.environ.get("RUN", ""), epoch, f"train-{example}", generation, number).episode_id: crc32(
        f"{epoch} {example} {generation}".encode()
    )
    for epoch in range(EPOCHS)
    for example in range(EXAMPLES)
    for generation in range(GENERATIONS)
    for number in range(TRIES)
}
"""By the id of an attempt's episode; one that a kill has cut is made again under another id, and has the same seed."""


class PlacedConfig(FunctionBaseConfig, name="placed"):
    llm: str


@register_function(config_type=PlacedConfig, framework_wrappers=[LLMFrameworkEnum.LANGCHAIN])
async def placed(config: PlacedConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    llm: Any = await builder.get_llm(config.llm, wrapper_type=LLMFrameworkEnum.LANGCHAIN)

    async def run(question: str) -> str:
        episode = context.current_episode()
        while episode is not None and episode.id not in SEEDS:
            episode = episode.parent
        seed = crc32(question.encode()) if episode is None else SEEDS[episode.id]
        return str((await llm.ainvoke(question, max_tokens=MAX_TOKENS, seed=seed % 2**31)).content)

    yield FunctionInfo.from_fn(run)
