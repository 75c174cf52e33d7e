"""The custom components that the guide on extending describes, with rollbus' imports in place of the toolkit's."""

from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel, Field

from rollbus.harness import (
    Builder,
    EpisodeItem,
    EpisodeItemRole,
    EvalInputItem,
    EvalOutputItem,
    EvaluationRunOutput,
    EvaluatorConfig,
    FunctionConfig,
    Trainer,
    TrainerAdapter,
    TrainerAdapterConfig,
    TrainerConfig,
    TrainingJobRef,
    TrainingJobStatus,
    TrainingStatusEnum,
    Trajectory,
    TrajectoryBuilder,
    TrajectoryBuilderConfig,
    TrajectoryCollection,
    register_evaluator,
    register_function,
    register_trainer,
    register_trainer_adapter,
    register_trajectory_builder,
)


class MyTrajectoryBuilderConfig(TrajectoryBuilderConfig, name="my_traj_builder"):
    num_generations: int = Field(default=2, ge=1)
    include_tool_calls: bool = Field(default=True)
    min_episode_length: int = Field(default=2)


class MyTrajectoryBuilder(TrajectoryBuilder):
    """One evaluation run per generation; what each said becomes a trajectory."""

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
            for item, score in zip(output.eval_input.eval_input_items, scores.eval_output_items, strict=True):
                groups.setdefault(item.id, []).append(
                    Trajectory(
                        episode=_episode(item), reward=await self.compute_reward(score), metadata={"id": item.id}
                    )
                )
        return TrajectoryCollection(trajectories=list(groups.values()), run_id=run_id)

    def log_progress(self, run_id: str, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        pass


def _episode(item: EvalInputItem) -> list[EpisodeItem]:
    episode = []
    for step in item.trajectory:
        if step.event_type == "LLM_START":
            episode += [EpisodeItem(role=EpisodeItemRole(one["role"]), content=one["content"]) for one in step.input]
        elif step.event_type == "LLM_END":
            episode.append(EpisodeItem(role=EpisodeItemRole.ASSISTANT, content=step.output, logprobs=step.logprobs))
    return episode


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
    """Keeps what it is given."""

    def __init__(self, adapter_config: MyTrainerAdapterConfig) -> None:
        super().__init__(adapter_config)
        self.submitted: list[TrajectoryCollection] = []

    async def is_healthy(self) -> bool:
        return True

    async def submit(self, trajectories: TrajectoryCollection) -> TrainingJobRef:
        self.submitted.append(trajectories)
        return TrainingJobRef(run_id=trajectories.run_id, backend="mine")

    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        return TrainingJobStatus(run_id=ref.run_id, backend="mine", status=TrainingStatusEnum.COMPLETED)

    async def wait_until_complete(self, ref: TrainingJobRef, poll_interval: float = 10.0) -> TrainingJobStatus:
        return await self.status(ref)

    def log_progress(self, ref: TrainingJobRef, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        pass


class MyTrainerConfig(TrainerConfig, name="my_trainer"):
    pass


class MyTrainer(Trainer):
    """The simplest loop that the interface allows."""

    async def run_epoch(self, epoch: int, run_id: str) -> TrainingJobRef | None:
        await self.trajectory_builder.start_run(run_id, {"epoch": epoch})
        return await self.trainer_adapter.submit(await self.trajectory_builder.finalize(run_id, {"epoch": epoch}))

    async def run(self, num_epochs: int) -> list[TrainingJobStatus]:
        statuses = []
        for epoch in range(num_epochs):
            ref = await self.run_epoch(epoch, "mine")
            assert ref is not None
            statuses.append(await self.trainer_adapter.wait_until_complete(ref))
        return statuses

    async def get_metrics(self, run_id: str) -> dict[str, Any]:
        return {}

    async def cleanup(self) -> None:
        pass

    def log_progress(self, epoch: int, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        pass


class MyWorkflowConfig(FunctionConfig, name="my_agent_workflow"):
    llm: str


class OtherWorkflowConfig(MyWorkflowConfig, name="my_workflow"):
    pass


class MyEvaluatorConfig(EvaluatorConfig, name="my_custom_evaluator"):
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


@register_function(config_type=MyWorkflowConfig)
@register_function(config_type=OtherWorkflowConfig)
async def my_agent_workflow(config: MyWorkflowConfig, builder: Builder) -> AsyncIterator[Any]:
    llm = await builder.get_llm(config.llm)

    async def run(question: str) -> str | None:
        answer = await llm.chat([{"role": "user", "content": question}])
        content: str | None = answer.choices[0].message.content
        return content

    yield run


@register_evaluator(config_type=MyEvaluatorConfig)
async def my_custom_evaluator(config: MyEvaluatorConfig, builder: Builder) -> AsyncIterator[Any]:
    async def evaluate(item: EvalInputItem) -> EvalOutputItem:
        return EvalOutputItem(id=item.id, score=float(item.output_obj == item.expected_output_obj), reasoning="equal")

    yield evaluate
