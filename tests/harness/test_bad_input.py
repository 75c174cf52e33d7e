"""What a user may hand to a run by mistake: each is named, and nothing is trained on a guess."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollbus.harness import EvalOutputItem, FinetuneRunConfig, Trajectory, TrajectoryCollection
from rollbus.harness import finetune as ft
from rollbus.harness.calling import find
from rollbus.harness.configuration import DatasetConfig
from rollbus.harness.datasets import load_dataset
from rollbus.harness.evaluation_models import worth_of
from rollbus.harness.evaluators import output_of
from rollbus.harness.publishing import _examples
from rollbus.schemas.errors import ConfigurationError, RejectedError, RunStoppedError
from rollbus.trainer.backends.memory import MemoryBackend
from tests.harness.world import Endpoint, document, memory_bus, opened, read, run_epochs


def load(tmp_path: Path, name: str, text: str) -> Any:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return load_dataset(DatasetConfig.model_validate({"file_path": path}))


def test_a_string_may_hold_what_other_formats_end_a_line_with(tmp_path: Path) -> None:
    row = {"id": "1", "question": "a\u2028b\x85c"}
    load(tmp_path, "a.jsonl", json.dumps(row, ensure_ascii=False) + "\n")


def test_a_line_that_is_cut_off_is_named_by_its_number(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="line 2"):
        load(tmp_path, "a.jsonl", '{"id": 1, "question": "a"}\n{"id": 2, "que')


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("id,question\n1,a,b\n", "example 0 has more or fewer cells"),
        ("id,question\n1,a\n2\n", "example 1 has more or fewer cells"),
        ("id,question\n1," + "x" * 200_000 + "\n", "field larger than field limit"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        load(tmp_path, "a.csv", text)


@pytest.mark.parametrize("path", ["divides:f", ":f", "names:f", "parses:f"])
def test_a_module_that_raises_as_it_is_imported_is_a_configuration_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in (("divides", "1/0\n"), ("names", "foo\n"), ("parses", "def (\n")):
        (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        find(path, what="workflow")


@pytest.mark.parametrize("torn", ["", "{}", "[]", '{"run_id"'])
def test_a_torn_state_file_is_named(tmp_path: Path, torn: str) -> None:
    config = read(tmp_path, document(tmp_path))
    (tmp_path / "run.json").write_text(torn)
    for resume in (True, False):
        with pytest.raises(ConfigurationError, match=r"run\.json does not name a run"):
            ft._run_id(config, tmp_path, resume=resume)


@pytest.mark.parametrize("trainer", [None, "x", {"backend": "memory"}, {"backend": None}])
def test_settings_of_another_shape_are_a_configuration_error(tmp_path: Path, trainer: Any) -> None:
    plain = document(tmp_path)
    plain["rollbus"]["settings"] = {"trainer": trainer}
    config = read(tmp_path, plain)
    with pytest.raises(ConfigurationError):
        ft._require_runnable(ft.FinetuneOptions(config, FinetuneRunConfig(config_file=config)))


def test_a_score_that_is_no_number_leaves_the_average_alone() -> None:
    items = [EvalOutputItem(id=1, score=1.0), EvalOutputItem(id=2, score=float("nan"))]
    assert output_of(items).average_score == 1.0


@pytest.mark.parametrize("item", [{"score": 10**400}, {"score": 1.0, "shaped_rewards": 0.5}])
def test_what_cannot_be_added_up_is_worth_nothing(item: dict[str, Any]) -> None:
    assert worth_of(EvalOutputItem.model_construct(id=1, **item)) is None


def test_groups_of_like_names_are_told_apart() -> None:
    groups = [[Trajectory(episode=[], reward=1.0, metadata={"id": name})] for name in ("a", "a", "a#2", "a")]
    names = list(_examples(TrajectoryCollection(trajectories=groups, run_id="r")))
    assert len(set(names)) == 4, names


async def test_a_run_whose_step_failed_for_good_goes_on_when_it_is_resumed(tmp_path: Path) -> None:
    broken = True

    def fault(point: str, request: Any) -> None:
        if broken:
            raise RejectedError("out of memory")

    config = read(tmp_path, document(tmp_path))
    bus = memory_bus(config, backend=MemoryBackend(model="agent", fault=fault))
    async with opened(config, bus, Endpoint()) as made:
        assert [each.status.value for each in await run_epochs(made, 2)] == ["failed"]
    broken = False
    async with opened(config, bus, Endpoint(), resume=True) as made:
        assert [each.status.value for each in await run_epochs(made, 2)] == ["completed"] * 2


async def test_a_curriculum_that_admits_nothing_ever_stops_the_run(tmp_path: Path) -> None:
    config = read(tmp_path, document(tmp_path, curriculum_learning={"enabled": True, "min_reward_diff": 5.0}))
    async with opened(config, memory_bus(config), Endpoint()) as made:
        with pytest.raises(RunStoppedError):
            await run_epochs(made, 7)
