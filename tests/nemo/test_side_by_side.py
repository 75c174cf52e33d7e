"""The toolkit's ART plugin and ours, side by side: the same groups, rewards, curriculum and files."""

import json
import logging
import random
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from nat.data_models.evaluate_runtime import EvaluationRunConfig
from nat.data_models.finetuning import (
    CurriculumLearningConfig,
    EpisodeItem,
    FinetuneConfig,
    FinetuneRunConfig,
    Trajectory,
    TrajectoryCollection,
)
from nat.plugins.eval.runtime.evaluate import EvaluationRun
from nat.plugins.openpipe.config import ARTTrainerConfig, ARTTrajectoryBuilderConfig
from nat.plugins.openpipe.trainer import ARTTrainer
from nat.plugins.openpipe.trajectory_builder import ARTTrajectoryBuilder
from pydantic import ValidationError

from rollbus.nemo.bus.publish_trajectories import count
from rollbus.nemo.evaluation import evaluate
from rollbus.nemo.trainer import BusTrainer
from tests.nemo.test_curriculum import collection
from tests.nemo.world import RUN, Endpoint, document, memory_bus, new_run, opened, read, run_epochs


def tuning(plan: Any, **curriculum: Any) -> FinetuneConfig:
    finetune_config: FinetuneConfig = plan.config.finetuning.model_copy(
        update={"curriculum_learning": CurriculumLearningConfig(enabled=True, **curriculum)}
    )
    return finetune_config


async def test_both_builders_make_the_same_groups_and_rewards_of_one_evaluation(tmp_path: Path) -> None:
    async with new_run(tmp_path) as components:
        outputs = [await evaluate(components.builder.run_config, components.run) for _ in range(2)]
        theirs = ARTTrajectoryBuilder(ARTTrajectoryBuilderConfig(num_generations=2))
        await theirs.initialize(components.builder.run_config)
        answers = iter(outputs)

        async def run_eval() -> Any:
            return next(answers)

        theirs.run_eval = run_eval  # type: ignore[method-assign]
        await theirs.start_run(RUN, {"epoch": 0})
        expected = await theirs.finalize(RUN, {"epoch": 0})
        published_collection = await components.run.publish(expected.model_copy(deep=True), 0)
    assert [[member.reward for member in group] for group in published_collection.trajectories] == [
        [member.reward for member in group] for group in expected.trajectories
    ]
    assert count(published_collection) == 6
    for ours, other in zip(chain(*published_collection.trajectories), chain(*expected.trajectories), strict=True):
        assert messages_of(ours) == messages_of(other)


def messages_of(trajectory: Trajectory) -> list[tuple[str, str]]:
    return [(item.role.value, item.content) for item in trajectory.episode if isinstance(item, EpisodeItem)]


class _Sub:
    """A part that a trainer initializes."""

    async def initialize(self, run_config: Any) -> None:
        pass


@pytest.mark.parametrize(
    "options",
    [{}, {"sort_ascending": True, "expansion_interval": 2}, {"initial_percentile": 0.6, "min_reward_diff": 0.5}],
)
async def test_both_trainers_choose_the_same_groups_epoch_after_epoch(tmp_path: Path, options: dict[str, Any]) -> None:
    plan = read(tmp_path, document(tmp_path))
    theirs = ARTTrainer(ARTTrainerConfig())
    await theirs.bind_components(_Sub(), _Sub())  # type: ignore[arg-type]
    await theirs.initialize(tuning(plan, **options))
    chance = random.Random(7)
    async with opened(plan, memory_bus(plan), Endpoint()) as components:
        assert isinstance(components.trainer, BusTrainer)
        components.trainer.curriculum_config = tuning(plan, **options).curriculum_learning
        components.trainer._curriculum_state["current_percentile"] = (
            components.trainer.curriculum_config.initial_percentile
        )
        for epoch in range(24):
            groups = [[chance.random() for _ in range(4)] for _ in range(12)]
            ours = components.trainer.apply_curriculum_learning(collection(*groups), epoch)
            other = theirs.apply_curriculum_learning(collection(*groups), epoch)
            assert rewards(ours) == rewards(other), epoch
            state, others = components.trainer.get_curriculum_state(), theirs.get_curriculum_state()
            for name in ("current_percentile", "last_expansion_epoch", "total_groups"):
                assert state[name] == others[name], (epoch, name)
            assert sorted(state["included_groups"]) == sorted(others["included_groups"])


def rewards(collection: TrajectoryCollection) -> list[list[float]]:
    return [[member.reward for member in group] for group in collection.trajectories]


async def test_the_files_have_the_fields_of_the_arts_trainer(tmp_path: Path) -> None:
    async with new_run(tmp_path, document(tmp_path, curriculum_learning={"enabled": True})) as components:
        await run_epochs(components, 1)
        theirs = ARTTrainer(ARTTrainerConfig())
        await theirs.bind_components(_Sub(), _Sub())  # type: ignore[arg-type]
        await theirs.initialize(components.trainer.run_config)
        row = json.loads((tmp_path / "output" / "training_metrics.jsonl").read_text())
        names = ("avg_reward", "min_reward", "max_reward", "num_trajectories", "num_groups")
        theirs.log_progress(0, {name: row[name] for name in names}, output_dir=str(tmp_path / "theirs"))
    for name in ("reward_history.json", "curriculum_state.json"):
        ours, other = (json.loads((tmp_path / folder / name).read_text()) for folder in ("output", "theirs"))
        assert list(ours[0] if isinstance(ours, list) else ours) == list(other[0] if isinstance(other, list) else other)
    other_row = json.loads((tmp_path / "theirs" / "training_metrics.jsonl").read_text())
    assert other_row.keys() <= row.keys()


async def test_the_toolkits_self_containing_configuration_ends_its_evaluation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So `tests/faults/finetune` calls the toolkit's runtime, and gives it the file's path."""
    config = read(tmp_path, document(tmp_path)).config
    config.finetuning.run_configuration = FinetuneRunConfig(config_file=config)  # as `nat finetune` of 1.9.0 has it
    caplog.set_level(logging.INFO, "nat.plugins.eval.runtime.evaluate")
    with pytest.raises(RecursionError):  # in the line that shows the configuration: logging lets this error through
        await EvaluationRun(EvaluationRunConfig(config_file=config)).run_and_evaluate()
    with pytest.raises(ValidationError, match="dataset"):  # that of --validation_dataset is a Path there
        EvaluationRunConfig(config_file=tmp_path / "config.yml", dataset=tmp_path / "train.json")  # type: ignore[arg-type]
