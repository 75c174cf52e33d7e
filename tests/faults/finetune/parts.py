"""A user's own trajectory builder and trainer for the toolkit, and a workflow that asks with a seed for each attempt.

So attempts at an example differ, and an attempt that is made again does not.
"""

from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

from nat.builder.builder import Builder
from nat.builder.evaluator import EvaluatorInfo
from nat.builder.framework_enum import LLMFrameworkEnum
from nat.builder.function_info import FunctionInfo
from nat.cli.register_workflow import (
    register_evaluator,
    register_function,
    register_trainer,
    register_trajectory_builder,
)
from nat.data_models.evaluate_runtime import EvaluationRunOutput
from nat.data_models.evaluator import EvalInputItem, EvaluatorBaseConfig
from nat.data_models.finetuning import (
    EpisodeItem,
    EpisodeItemRole,
    Trajectory,
    TrajectoryBuilderConfig,
    TrajectoryCollection,
)
from nat.data_models.function import FunctionBaseConfig
from nat.finetuning.interfaces.trajectory_builder import TrajectoryBuilder
from nat.finetuning.utils.parsers.base_parser import parse_to_openai_messages
from nat.plugins.eval.data_models.evaluator_io import EvalOutputItem
from nat.plugins.eval.evaluator.base_evaluator import BaseEvaluator

from rollbus.nemo.components import BusTrainerConfig
from rollbus.nemo.trainer import BusTrainer

GENERATIONS = 2
SEED: ContextVar[int] = ContextVar("seed", default=0)


class EchoConfig(FunctionBaseConfig, name="echo_workflow"):
    llm: str


class DigitConfig(EvaluatorBaseConfig, name="digit"):
    pass


class TwiceConfig(TrajectoryBuilderConfig, name="twice_over"):
    pass


class LowestConfig(BusTrainerConfig, name="lowest"):
    pass


class Digit(BaseEvaluator):
    async def evaluate_item(self, item: EvalInputItem) -> EvalOutputItem:
        return EvalOutputItem(id=item.id, score=int(item.output_obj) / 10, reasoning="")


class TwiceOver(TrajectoryBuilder):
    """Plays the examples one generation after the other."""

    def __init__(self, trajectory_builder_config: TwiceConfig) -> None:
        super().__init__(trajectory_builder_config)
        self.outputs: dict[str, list[EvaluationRunOutput]] = {}

    async def start_run(self, run_id: str, meta: dict[str, Any] | None = None) -> None:
        self.outputs[run_id] = []
        for generation in range(GENERATIONS):
            SEED.set(1 + (meta or {})["epoch"] * GENERATIONS + generation)
            self.outputs[run_id].append(await self.run_eval())
        SEED.set(0)

    async def finalize(self, run_id: str, meta: dict[str, Any] | None = None) -> TrajectoryCollection:
        groups: dict[str, list[Trajectory]] = {}
        for output in self.outputs.pop(run_id):
            ((_, scores),) = output.evaluation_results
            items = {item.id: item for item in output.eval_input.eval_input_items}
            for number, score in enumerate(scores.eval_output_items):
                episode = [
                    EpisodeItem(
                        role=EpisodeItemRole(to_openai_message["role"]),
                        content=to_openai_message["content"],
                        logprobs=to_openai_message.get("logprobs"),
                    )
                    for to_openai_message in parse_to_openai_messages(items[score.id].trajectory)
                ]
                trajectory = Trajectory(episode=episode, reward=score.score, metadata={"id": score.id, "place": number})
                groups.setdefault(str(score.id), []).append(trajectory)
        return TrajectoryCollection(trajectories=list(groups.values()), run_id=run_id)

    def log_progress(self, run_id: str, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        pass


class Lowest(BusTrainer):
    """Trains on the last of the groups that the curriculum admits."""

    def apply_curriculum_learning(
        self, trajectory_collection: TrajectoryCollection, epoch: int
    ) -> TrajectoryCollection:
        chosen = super().apply_curriculum_learning(trajectory_collection, epoch)
        return chosen.model_copy(update={"trajectories": chosen.trajectories[-1:]})


@register_trajectory_builder(config_type=TwiceConfig)
async def twice_over(config: TwiceConfig, builder: Builder) -> AsyncIterator[Any]:
    yield TwiceOver(config)


@register_trainer(config_type=LowestConfig)
async def lowest(config: LowestConfig, builder: Builder) -> AsyncIterator[Any]:
    yield Lowest(config)


@register_function(config_type=EchoConfig, framework_wrappers=[LLMFrameworkEnum.LANGCHAIN])
async def echo_workflow(config: EchoConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    llm: Any = await builder.get_llm(config.llm, wrapper_type=LLMFrameworkEnum.LANGCHAIN)

    async def run(question: str) -> str:
        return str((await llm.ainvoke(question, seed=SEED.get())).content)

    yield FunctionInfo.from_fn(run)


@register_evaluator(config_type=DigitConfig)
async def digit(config: DigitConfig, builder: Any) -> AsyncIterator[EvaluatorInfo]:
    yield EvaluatorInfo(config=config, evaluate_fn=Digit().evaluate, description="The digit that was said.")  # type: ignore[arg-type]  # as all of its own
