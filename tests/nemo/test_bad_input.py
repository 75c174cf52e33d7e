"""What a user may hand to a run by mistake: each is named, and nothing is trained on a guess."""

from pathlib import Path
from typing import Any

import pytest
from nat.data_models.finetuning import FinetuneRunConfig, Trajectory, TrajectoryCollection
from nat.plugins.eval.data_models.evaluator_io import EvalOutputItem

from rollbus.nemo.bus.publish_trajectories import example_names
from rollbus.nemo.checks import FinetuneOptions, require_runnable
from rollbus.nemo.runs.folder import newest_run
from rollbus.nemo.troubles import worth_of
from rollbus.schemas.errors import ConfigurationError, RejectedError, RunStoppedError
from rollbus.trainer.backends.memory import MemoryBackend
from tests.nemo.world import Endpoint, document, memory_bus, new_run, opened, read, run_epochs


@pytest.mark.parametrize("torn", ["", "{}", "[]", '{"run_id"'])
def test_a_torn_record_of_a_run_is_named(tmp_path: Path, torn: str) -> None:
    (tmp_path / "run-7").mkdir()
    (tmp_path / "run-7" / "run.json").write_text(torn)
    with pytest.raises(ConfigurationError, match=r"run\.json does not describe a run"):
        newest_run(tmp_path)


@pytest.mark.parametrize("trainer", [None, "x", {"backend": "memory"}, {"backend": None}])
def test_settings_of_another_shape_are_a_configuration_error(tmp_path: Path, trainer: Any) -> None:
    plain = document(tmp_path)
    plain["rollbus"]["settings"] = {"trainer": trainer}
    config = read(tmp_path, plain)
    with pytest.raises(ConfigurationError):
        require_runnable(FinetuneOptions(config, FinetuneRunConfig()))


class ScoredItem(EvalOutputItem):
    shaped_rewards: Any = None


@pytest.mark.parametrize("item", [{"score": 10**400}, {"score": 1.0, "shaped_rewards": 0.5}])
def test_a_score_that_cannot_be_summed_is_worth_nothing(item: dict[str, Any]) -> None:
    assert worth_of(ScoredItem.model_construct(id=1, **item)) is None


def test_groups_with_similar_names_are_separate() -> None:
    groups = [[Trajectory(episode=[], reward=1.0, metadata={"id": name})] for name in ("a", "a", "a#2", "a")]
    names = list(example_names(TrajectoryCollection(trajectories=groups, run_id="r")))
    assert len(set(names)) == 4, names


def test_an_example_without_an_id_is_named_by_its_place() -> None:
    metadata: list[Any] = [{"id": None}, None, {}, {"id": 0}]
    groups = [[Trajectory(episode=[], reward=1.0, metadata=fields)] for fields in metadata]
    assert list(example_names(TrajectoryCollection(trajectories=groups, run_id="r"))) == ["0", "1", "2", "0#2"]


async def test_a_run_whose_step_failed_for_good_goes_on_when_it_is_resumed(tmp_path: Path) -> None:
    broken = True

    def fault(point: str, request: Any) -> None:
        if broken:
            raise RejectedError("out of memory")

    config = read(tmp_path, document(tmp_path))
    bus = memory_bus(config, backend=MemoryBackend(model="agent", fault=fault))
    async with opened(config, bus, Endpoint()) as components:
        assert [epoch.status.value for epoch in await run_epochs(components, 2)] == ["failed"]
    broken = False
    async with opened(config, bus, Endpoint(), resume=True) as components:
        assert [epoch.status.value for epoch in await run_epochs(components, 2)] == ["completed"] * 2


async def test_a_curriculum_that_never_admits_a_group_stops_the_run(tmp_path: Path) -> None:
    plain = document(tmp_path, curriculum_learning={"enabled": True, "min_reward_diff": 5.0})
    async with new_run(tmp_path, plain) as components:
        with pytest.raises(RunStoppedError):
            await run_epochs(components, 7)


async def test_a_new_run_does_not_take_over_the_epochs_of_an_earlier_run(tmp_path: Path) -> None:
    config = read(tmp_path, document(tmp_path))
    bus = memory_bus(config)
    async with opened(config, bus, Endpoint()) as components:
        await run_epochs(components, 1)
    with pytest.raises(ConfigurationError, match="is on this broker already, with 1 epochs"):
        async with opened(config, bus, Endpoint()):
            pass
