"""The plugin's entry point in the group `nat.components`: what a configuration may name, and how it is made."""

from collections.abc import AsyncIterator
from typing import Any

from nat.builder.builder import Builder
from nat.builder.framework_enum import LLMFrameworkEnum
from nat.builder.llm import LLMProviderInfo
from nat.cli.register_workflow import (
    register_llm_client,
    register_llm_provider,
    register_trainer,
    register_trainer_adapter,
    register_trajectory_builder,
)

from rollbus.harness.components import (
    BusTrainerAdapterConfig,
    BusTrainerConfig,
    BusTrajectoryBuilderConfig,
    RecordedOpenAIConfig,
)


@register_trajectory_builder(config_type=BusTrajectoryBuilderConfig)
async def bus_trajectory_builder(config: BusTrajectoryBuilderConfig, builder: Builder) -> AsyncIterator[Any]:
    """Yield the trajectory builder."""
    from rollbus.harness.trajectory_builder import BusTrajectoryBuilder

    yield BusTrajectoryBuilder(trajectory_builder_config=config)


@register_trainer_adapter(config_type=BusTrainerAdapterConfig)
async def bus_trainer_adapter(config: BusTrainerAdapterConfig, builder: Builder) -> AsyncIterator[Any]:
    """Yield the adapter to ART."""
    from rollbus.harness.trainer_adapter import BusTrainerAdapter

    yield BusTrainerAdapter(adapter_config=config)


@register_trainer(config_type=BusTrainerConfig)
async def bus_trainer(config: BusTrainerConfig, builder: Builder) -> AsyncIterator[Any]:
    """Yield the trainer."""
    from rollbus.harness.trainer import BusTrainer

    yield BusTrainer(trainer_config=config)


@register_llm_provider(config_type=RecordedOpenAIConfig)
async def recorded_openai(config: RecordedOpenAIConfig, builder: Builder) -> AsyncIterator[LLMProviderInfo]:
    """Yield the model's description."""
    yield LLMProviderInfo(config=config, description="An OpenAI model whose calls are recorded.")


def _register_client(framework: LLMFrameworkEnum) -> None:
    @register_llm_client(config_type=RecordedOpenAIConfig, wrapper_type=framework)
    async def recorded_client(config: RecordedOpenAIConfig, builder: Builder) -> AsyncIterator[Any]:
        from rollbus.harness.llms import recorded_model

        async with recorded_model(config, builder, framework) as model:
            yield model


for _framework in LLMFrameworkEnum:
    _register_client(_framework)
