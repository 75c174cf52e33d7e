"""What a configuration may name, and how it is made; imported by `register`, once the toolkit is known to have it."""

from collections.abc import AsyncIterator
from pkgutil import resolve_name
from typing import Any

from nat.builder.builder import Builder
from nat.builder.framework_enum import LLMFrameworkEnum
from nat.builder.llm import LLMProviderInfo
from nat.cli.register_workflow import (
    register_eval_callback,
    register_llm_client,
    register_llm_provider,
    register_telemetry_exporter,
    register_trainer,
    register_trainer_adapter,
    register_trajectory_builder,
)

from rollbus.nemo.components import (
    BusTrainerAdapterConfig,
    BusTrainerConfig,
    BusTrajectoryBuilderConfig,
    LogTrajectoryBuilderConfig,
    RecordedOpenAIConfig,
    WorkflowTelemetryConfig,
)

PARTS: tuple[tuple[Any, type[Any], str], ...] = (
    (register_trajectory_builder, BusTrajectoryBuilderConfig, "trajectory_builder:BusTrajectoryBuilder"),
    (register_trajectory_builder, LogTrajectoryBuilderConfig, "production.log_builder:BusLogBuilder"),
    (register_trainer_adapter, BusTrainerAdapterConfig, "trainer_adapter:BusTrainerAdapter"),
    (register_trainer, BusTrainerConfig, "trainer:BusTrainer"),
)
"""How a part is registered, its configuration, and its class in this folder, which is imported where it is chosen."""


def _register_part(register: Any, config_type: type[Any], name: str) -> None:
    @register(config_type=config_type)
    async def make(config: Any, builder: Builder) -> AsyncIterator[Any]:
        yield resolve_name(f"rollbus.nemo.{name}")(config)


for _part in PARTS:
    _register_part(*_part)


@register_llm_provider(config_type=RecordedOpenAIConfig)
async def recorded_openai(config: RecordedOpenAIConfig, builder: Builder) -> AsyncIterator[LLMProviderInfo]:
    """Yield the model's description."""
    yield LLMProviderInfo(config=config, description="An OpenAI model whose calls are recorded.")


def _register_client(framework: LLMFrameworkEnum) -> None:
    @register_llm_client(config_type=RecordedOpenAIConfig, wrapper_type=framework)
    async def recorded_client(config: RecordedOpenAIConfig, builder: Builder) -> AsyncIterator[Any]:
        from rollbus.nemo.llms import recorded_model

        async with recorded_model(config, builder, framework) as model:
            yield model


for _framework in LLMFrameworkEnum:
    _register_client(_framework)


@register_telemetry_exporter(config_type=WorkflowTelemetryConfig)
async def workflow_telemetry(config: WorkflowTelemetryConfig, builder: Builder) -> AsyncIterator[Any]:
    """Yield the exporter that records a workflow's requests."""
    from rollbus.nemo.production.telemetry import telemetry_exporter

    async with telemetry_exporter(config, builder) as exporter:
        yield exporter


@register_eval_callback(config_type=WorkflowTelemetryConfig)
def evaluation_scores(config: WorkflowTelemetryConfig) -> Any:
    """Return what makes rewards and evaluations of the scores of `nat eval`."""
    from rollbus.nemo.production.eval_scores import new_scores

    return new_scores()
