"""The data models and interfaces have the guides' fields, defaults, messages and signatures."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import rollbus.harness
from rollbus.harness import (
    CurriculumLearningConfig,
    DPOItem,
    EpisodeItem,
    EpisodeItemRole,
    EvalOutputItem,
    FinetuneConfig,
    FinetuneRunConfig,
    IntermediateStep,
    OpenAIMessage,
    Trainer,
    TrainerAdapter,
    TrainerAdapterConfig,
    TrainerConfig,
    TrainingJobStatus,
    TrainingStatusEnum,
    Trajectory,
    TrajectoryBuilder,
    TrajectoryBuilderConfig,
    register_trainer,
)
from rollbus.harness.art_components import ARTBackendConfig, ARTTrainingConfig, ARTTrajectoryBuilderConfig
from rollbus.schemas.errors import ConfigurationError
from tests.harness.guide_components import MyTrajectoryBuilder, MyTrajectoryBuilderConfig


def test_an_assistant_item_needs_log_probs_and_an_empty_dict_will_do() -> None:
    with pytest.raises(ValidationError, match="logprobs must be provided for assistant role"):
        EpisodeItem(role=EpisodeItemRole.ASSISTANT, content="hello")
    assert EpisodeItem(role=EpisodeItemRole.ASSISTANT, content="hello", logprobs={}).logprobs == {}
    assert EpisodeItem(role=EpisodeItemRole.USER, content="hello").metadata is None


def test_the_roles_and_states_are_the_guides() -> None:
    assert [role.value for role in EpisodeItemRole] == [
        *("user", "assistant", "system", "function", "tool", "environment", "other")
    ]
    assert [state.value for state in TrainingStatusEnum] == ["pending", "running", "completed", "failed", "canceled"]


def test_a_trajectory_may_hold_preferences() -> None:
    item = DPOItem(prompt=[OpenAIMessage(role="user", content="?")], chosen_response="a", rejected_response="b")
    trajectory = Trajectory(episode=[item], reward=0.5)
    assert trajectory.episode == [item]
    assert (trajectory.shaped_rewards, trajectory.metadata) == (None, None)


@pytest.mark.parametrize("field", ["initial_percentile", "increment_percentile"])
@pytest.mark.parametrize("value", [0, 1.01, -0.1])
def test_a_share_of_the_curriculum_is_above_0_and_at_most_1(field: str, value: float) -> None:
    with pytest.raises(ValidationError):
        CurriculumLearningConfig(**{field: value})  # type: ignore[arg-type]


def test_the_curriculums_defaults_are_the_guides() -> None:
    plain = CurriculumLearningConfig().model_dump()
    assert plain == {
        "enabled": False,
        "initial_percentile": 0.3,
        "increment_percentile": 0.2,
        "expansion_interval": 5,
        "min_reward_diff": 0.1,
        "sort_ascending": False,
        "random_subsample": None,
        "seed": 0,
    }


def test_enabled_finetuning_names_every_field_that_is_missing() -> None:
    FinetuneConfig()
    with pytest.raises(
        ValidationError,
        match="When fine-tuning is enabled, the following fields must be set: trainer_adapter, reward_function",
    ):
        FinetuneConfig(enabled=True, trainer="t", trajectory_builder="b")


def test_the_defaults_of_a_run_are_the_guides() -> None:
    run = FinetuneRunConfig(config_file=Path("c.yml"))
    assert (run.result_json_path, run.endpoint_timeout, run.validation_interval, run.override) == ("$", 300, 5, ())
    with pytest.raises(ValidationError):
        FinetuneRunConfig(config_file=Path("c.yml"), validation_interval=0)
    with pytest.raises(ValidationError):
        FinetuneConfig(num_epochs=0)


def test_the_art_defaults_are_the_guides() -> None:
    assert ARTTrajectoryBuilderConfig().num_generations == 2
    backend = ARTBackendConfig(ip="localhost", port=7623)
    assert (backend.name, backend.project, backend.api_key) == ("trainer_run", "trainer_project", "default")
    assert backend.base_model == "Qwen/Qwen2.5-7B-Instruct"
    assert not backend.delete_old_checkpoints
    assert (ARTTrainingConfig().learning_rate, ARTTrainingConfig().beta) == (5e-5, 0.0)


def test_progress_is_in_percent() -> None:
    with pytest.raises(ValidationError):
        TrainingJobStatus(run_id="r", backend="b", status=TrainingStatusEnum.RUNNING, progress=101)


def test_a_name_becomes_the_type() -> None:
    assert MyTrajectoryBuilderConfig.static_type() == "my_traj_builder"
    assert MyTrajectoryBuilderConfig().type == "my_traj_builder"
    assert MyTrajectoryBuilderConfig.model_validate({"_type": "my_traj_builder", "num_generations": 4}).reward is None


def test_a_class_without_a_name_cannot_be_registered() -> None:
    class Nameless(TrainerConfig):
        pass

    with pytest.raises(ConfigurationError, match=r"Nameless\(TrainerConfig, name="):
        register_trainer(config_type=Nameless)


@pytest.mark.parametrize(
    ("interface", "signatures"),
    [
        (
            TrajectoryBuilder,
            {
                "__init__": "(self, trajectory_builder_config)",
                "initialize": "(self, run_config)",
                "run_eval": "(self)",
                "start_run": "(self, run_id, meta=None)",
                "finalize": "(self, run_id, meta=None)",
                "compute_reward": "(self, output_item, meta=None)",
                "log_progress": "(self, run_id, metrics, output_dir=None)",
            },
        ),
        (
            TrainerAdapter,
            {
                "__init__": "(self, adapter_config)",
                "initialize": "(self, run_config)",
                "is_healthy": "(self)",
                "submit": "(self, trajectories)",
                "status": "(self, ref)",
                "wait_until_complete": "(self, ref, poll_interval=10.0)",
                "log_progress": "(self, ref, metrics, output_dir=None)",
            },
        ),
        (
            Trainer,
            {
                "__init__": "(self, trainer_config, **kwargs)",
                "bind_components": "(self, trajectory_builder, trainer_adapter)",
                "initialize": "(self, run_config)",
                "run_epoch": "(self, epoch, run_id)",
                "run": "(self, num_epochs)",
                "get_metrics": "(self, run_id)",
                "cleanup": "(self)",
                "log_progress": "(self, epoch, metrics, output_dir=None)",
                "run_validation_evaluation": "(self, epoch, run_id)",
                "apply_curriculum_learning": "(self, trajectory_collection, epoch)",
                "get_curriculum_state": "(self)",
            },
        ),
    ],
)
def test_an_interface_has_the_guides_signatures(interface: type, signatures: dict[str, str]) -> None:
    found = {name: _plain(inspect.signature(getattr(interface, name))) for name in signatures}
    assert found == signatures


def _plain(signature: inspect.Signature) -> str:
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


async def test_initialize_hands_the_reward_to_the_components_configuration() -> None:
    builder = MyTrajectoryBuilder(MyTrajectoryBuilderConfig())
    config = FinetuneConfig.model_validate({"reward_function": {"name": "mine"}})
    await builder.initialize(config)
    assert builder.trajectory_builder_config.reward == config.reward_function
    assert await builder.compute_reward(EvalOutputItem(id=1, score="0.5")) == 0.5
    assert await builder.compute_reward(EvalOutputItem(id=1, score=None)) == 0.0


async def test_an_epoch_of_the_guides_builder_is_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    from rollbus.harness import EvalInput, EvalInputItem, EvalOutput, EvaluationRunOutput

    item = EvalInputItem(id="a", input_obj="?", output_obj="!")
    scores = EvalOutput(average_score=1.0, eval_output_items=[EvalOutputItem(id="a", score=1.0)])
    output = EvaluationRunOutput(eval_input=EvalInput(eval_input_items=[item]), evaluation_results=[("mine", scores)])
    builder = MyTrajectoryBuilder(MyTrajectoryBuilderConfig(num_generations=2))
    await builder.initialize(FinetuneConfig.model_validate({"reward_function": {"name": "mine"}}))

    async def run_eval() -> Any:
        return output

    monkeypatch.setattr(builder, "run_eval", run_eval)
    await builder.start_run("test-run")
    assert "test-run" in builder.evaluation_runs
    found = await builder.finalize("test-run")
    assert [len(group) for group in found.trajectories] == [2]
    assert found.count() == 2


def test_a_step_is_read_as_the_toolkits_builders_read_it() -> None:
    step = IntermediateStep(
        event_type="LLM_END", name="m", function_name="agent", input="?", output="!", logprobs={"content": []}
    )
    assert (step.payload.event_type, step.payload.name) == ("LLM_END", "m")
    assert (step.data.input, step.payload.data.output, step.data.logprobs) == ("?", "!", {"content": []})
    assert step.function_ancestry.function_name == "agent"


def test_every_public_name_can_be_imported() -> None:
    for name in rollbus.harness.__all__:
        assert getattr(rollbus.harness, name) is not None
    assert rollbus.harness.__all__ == sorted(rollbus.harness.__all__)


def test_configurations_of_one_kind_are_no_other() -> None:
    assert not issubclass(TrainerAdapterConfig, TrajectoryBuilderConfig)
