"""The custom components that the guide on extending describes, written for the toolkit alone."""

from collections.abc import AsyncIterator
from typing import Any

from nat.builder.builder import Builder
from nat.builder.evaluator import EvaluatorInfo
from nat.builder.framework_enum import LLMFrameworkEnum
from nat.builder.function_info import FunctionInfo
from nat.cli.register_workflow import (
    register_evaluator,
    register_function,
    register_trainer,
    register_trainer_adapter,
    register_trajectory_builder,
)
from nat.data_models.evaluate_runtime import EvaluationRunOutput
from nat.data_models.evaluator import EvalInput, EvaluatorBaseConfig
from nat.data_models.finetuning import (
    EpisodeItem,
    EpisodeItemRole,
    TrainerAdapterConfig,
    TrainerConfig,
    TrainingJobRef,
    TrainingJobStatus,
    TrainingStatusEnum,
    Trajectory,
    TrajectoryBuilderConfig,
    TrajectoryCollection,
)
from nat.data_models.function import FunctionBaseConfig
from nat.finetuning.interfaces.finetuning_runner import Trainer
from nat.finetuning.interfaces.trainer_adapter import TrainerAdapter
from nat.finetuning.interfaces.trajectory_builder import TrajectoryBuilder
from nat.finetuning.utils.parsers.base_parser import parse_to_openai_messages
from nat.plugins.eval.data_models.evaluator_io import EvalOutput, EvalOutputItem
from pydantic import BaseModel, Field


class MyTrajectoryBuilderConfig(TrajectoryBuilderConfig, name="my_traj_builder"):
    num_generations: int = Field(default=2, ge=1)
    include_tool_calls: bool = Field(default=True)
    min_episode_length: int = Field(default=2)


class MyTrajectoryBuilder(TrajectoryBuilder):
    """One evaluation run per generation; the answers of each become trajectories."""

    def __init__(self, trajectory_builder_config: MyTrajectoryBuilderConfig) -> None:
        super().__init__(trajectory_builder_config)
        self.evaluation_runs: dict[str, list[EvaluationRunOutput]] = {}

    async def start_run(self, run_id: str, meta: dict[str, Any] | None = None) -> None:
        config = self.trajectory_builder_config
        assert isinstance(config, MyTrajectoryBuilderConfig)
        self.evaluation_runs[run_id] = [await self.run_eval() for _ in range(config.num_generations)]

    async def finalize(self, run_id: str, meta: dict[str, Any] | None = None) -> TrajectoryCollection:
        groups: dict[Any, list[Trajectory]] = {}
        for output in self.evaluation_runs.pop(run_id):
            scores = dict(output.evaluation_results)[self.run_config.reward_function.name]  # type: ignore[union-attr]
            items = {item.id: item for item in output.eval_input.eval_input_items}
            for score in scores.eval_output_items:
                episode = [_item(message) for message in parse_to_openai_messages(items[score.id].trajectory)]
                reward = await self.compute_reward(score)
                metadata = {"id": score.id}
                groups.setdefault(score.id, []).append(Trajectory(episode=episode, reward=reward, metadata=metadata))
        return TrajectoryCollection(trajectories=list(groups.values()), run_id=run_id)

    def log_progress(self, run_id: str, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        pass


def _item(message: dict[str, Any]) -> EpisodeItem:
    metadata = {name: message[name] for name in ("tool_calls", "tool_call_id") if name in message}
    role = EpisodeItemRole(message["role"])
    return EpisodeItem(role=role, content=message["content"], logprobs=message.get("logprobs"), metadata=metadata)


class MyBackendConfig(BaseModel):
    endpoint: str
    api_key: str
    timeout: int = Field(default=3600)
    learning_rate: float = Field(default=1e-5)
    batch_size: int = Field(default=4)
    gradient_accumulation_steps: int = Field(default=4)


class MyTrainerAdapterConfig(TrainerAdapterConfig, name="my_trainer_adapter"):
    backend: MyBackendConfig
    validate_trajectories: bool = Field(default=True)


class MyTrainerAdapter(TrainerAdapter):
    """Keep the trajectories that are submitted."""

    def __init__(self, adapter_config: MyTrainerAdapterConfig) -> None:
        super().__init__(adapter_config)
        self.submitted: list[TrajectoryCollection] = []

    async def is_healthy(self) -> bool:
        return True

    async def submit(self, trajectories: TrajectoryCollection) -> TrainingJobRef:
        self.submitted.append(trajectories)
        return TrainingJobRef(run_id=trajectories.run_id, backend="mine")

    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        return TrainingJobStatus(
            run_id=ref.run_id, backend="mine", status=TrainingStatusEnum.COMPLETED, progress=100.0001
        )

    async def wait_until_complete(self, ref: TrainingJobRef, poll_interval: float = 10.0) -> TrainingJobStatus:
        return await self.status(ref)

    def log_progress(self, ref: TrainingJobRef, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        pass


class MyTrainerConfig(TrainerConfig, name="my_trainer"):
    pass


class MyTrainer(Trainer):
    """The simplest loop that the interface allows."""

    async def run_epoch(self, epoch: int, run_id: str) -> TrainingJobRef:
        await self.trajectory_builder.start_run(run_id, {"epoch": epoch})
        return await self.trainer_adapter.submit(await self.trajectory_builder.finalize(run_id, {"epoch": epoch}))

    async def run(self, num_epochs: int) -> list[TrainingJobStatus]:
        refs = [await self.run_epoch(epoch, "mine") for epoch in range(num_epochs)]
        return [await self.trainer_adapter.wait_until_complete(ref) for ref in refs]

    async def get_metrics(self, run_id: str) -> dict[str, Any]:
        return {}

    async def cleanup(self) -> None:
        pass

    def log_progress(self, epoch: int, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        pass


class MyWorkflowConfig(FunctionBaseConfig, name="my_agent_workflow"):
    llm: str


class OtherWorkflowConfig(MyWorkflowConfig, name="my_workflow"):
    pass


class MyEvaluatorConfig(EvaluatorBaseConfig, name="my_custom_evaluator"):
    pass


@register_trajectory_builder(config_type=MyTrajectoryBuilderConfig)
async def my_trajectory_builder(config: MyTrajectoryBuilderConfig, builder: Builder) -> AsyncIterator[Any]:
    yield MyTrajectoryBuilder(trajectory_builder_config=config)


@register_trainer_adapter(config_type=MyTrainerAdapterConfig)
async def my_trainer_adapter(config: MyTrainerAdapterConfig, builder: Builder) -> AsyncIterator[Any]:
    yield MyTrainerAdapter(adapter_config=config)


@register_trainer(config_type=MyTrainerConfig)
async def my_trainer(config: MyTrainerConfig, builder: Builder) -> AsyncIterator[Any]:
    yield MyTrainer(trainer_config=config)


async def my_agent_workflow(config: MyWorkflowConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    llm = await builder.get_llm(config.llm, wrapper_type=LLMFrameworkEnum.LANGCHAIN)

    async def run(question: str) -> str:
        return str((await llm.ainvoke(question)).content)

    yield FunctionInfo.from_fn(run)


for _type in (MyWorkflowConfig, OtherWorkflowConfig):
    register_function(config_type=_type, framework_wrappers=[LLMFrameworkEnum.LANGCHAIN])(my_agent_workflow)


@register_evaluator(config_type=MyEvaluatorConfig)
async def my_custom_evaluator(config: MyEvaluatorConfig, builder: Any) -> AsyncIterator[EvaluatorInfo]:
    async def evaluate(items: EvalInput) -> EvalOutput:
        output_items = [
            EvalOutputItem(id=item.id, score=float(item.output_obj == item.expected_output_obj), reasoning="equal")
            for item in items.eval_input_items
        ]
        return EvalOutput(average_score=None, eval_output_items=output_items)

    yield EvaluatorInfo(config=config, evaluate_fn=evaluate, description="equal")  # type: ignore[arg-type]  # as the toolkit's own evaluators do
