"""What a user may hand to a run by mistake: each is named, and nothing is trained on a guess."""

import json
import os
from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nat.data_models.finetuning import (
    EpisodeItem,
    EpisodeItemRole,
    FinetuneRunConfig,
    Trajectory,
    TrajectoryCollection,
)
from nat.data_models.function import FunctionGroupBaseConfig
from nat.plugins.eval.data_models.evaluator_io import EvalOutputItem

from rollbus.local.process.processes import identify
from rollbus.local.process.state import StartedService, write
from rollbus.nemo.bus.publish_trajectories import _message, example_names
from rollbus.nemo.checks import FinetuneOptions, require_runnable
from rollbus.nemo.runs.folder import RunRecord, delete_run, newest_run
from rollbus.nemo.troubles import worth_of
from rollbus.schemas.errors import ConfigurationError, RejectedError, RunStoppedError
from rollbus.trainer.backends.memory import MemoryBackend
from tests.nemo.world import Endpoint, document, memory_bus, new_run, opened, parity, read, rows_in, run_epochs


@pytest.mark.parametrize("torn", ["", "{}", "[]", '{"run_id"'])
def test_a_torn_record_of_a_run_is_named(tmp_path: Path, torn: str) -> None:
    (tmp_path / "run-7").mkdir()
    (tmp_path / "run-7" / "run.json").write_text(torn)
    with pytest.raises(ConfigurationError, match=r"run\.json does not describe a run"):
        newest_run(tmp_path, tmp_path / "config.yml")


@pytest.mark.parametrize("trainer", [None, "x", {"backend": "memory"}, {"backend": None}])
def test_settings_of_another_shape_are_a_configuration_error(tmp_path: Path, trainer: Any) -> None:
    plain = document(tmp_path)
    plain["rollbus"]["settings"] = {"trainer": trainer}
    config = read(tmp_path, plain)
    with pytest.raises(ConfigurationError):
        require_runnable(FinetuneOptions(config, FinetuneRunConfig()))


@pytest.mark.parametrize(("target", "is_function"), [("shop__price", True), ("shop", False), ("shopping", False)])
def test_a_target_in_a_group_is_a_function_of_it(tmp_path: Path, target: str, is_function: bool) -> None:
    plan = read(tmp_path, document(tmp_path, target_functions=[target]))
    config = plan.config.model_copy(update={"function_groups": {"shop": FunctionGroupBaseConfig()}})
    refusal = pytest.raises(ConfigurationError, match=f"no function '{target}'")
    with nullcontext() if is_function else refusal:
        require_runnable(FinetuneOptions(replace(plan, config=config), FinetuneRunConfig()))


async def test_examples_without_an_id_are_refused(tmp_path: Path) -> None:
    plain, refusal = document(tmp_path), "3 of 3 examples have the id ''; give each row its own"
    (tmp_path / "train.json").write_text(json.dumps([{"question": f"question {number}"} for number in range(3)]))
    with pytest.raises(ConfigurationError, match=refusal):
        require_runnable(FinetuneOptions(read(tmp_path, plain), FinetuneRunConfig()))
    async with new_run(tmp_path, plain) as components:
        with pytest.raises(ConfigurationError, match=refusal):
            await run_epochs(components, 1)


class ScoredItem(EvalOutputItem):
    shaped_rewards: Any = None


@pytest.mark.parametrize("item", [{"score": 10**400}, {"score": 1.0, "shaped_rewards": 0.5}])
def test_a_score_that_cannot_be_summed_is_worth_nothing(item: dict[str, Any]) -> None:
    assert worth_of(ScoredItem.model_construct(id=1, **item)) is None


@pytest.mark.parametrize("score", [np.float32(0.5), torch.tensor(0.5), Decimal("0.5")])
def test_a_number_of_another_library_is_a_score(score: Any) -> None:
    item = ScoredItem.model_construct(id=1, score=score, shaped_rewards=[score, np.int64(1), np.bool_(True)])
    worth = worth_of(item)
    assert (type(worth), worth) == (float, 3.0)


@pytest.mark.parametrize("score", [np.float32("nan"), np.array([0.5, 1.0]), "0.5", None])
def test_what_is_no_finite_number_is_no_score(score: Any) -> None:
    assert worth_of(ScoredItem.model_construct(id=1, score=score)) is None


async def test_an_evaluator_may_score_in_numpys_numbers(tmp_path: Path) -> None:
    def score_in_numpy(item: Any) -> Any:
        return np.float32(parity(item))

    plain, dataset = document(tmp_path, score=score_in_numpy), str(tmp_path / "train.json")
    async with new_run(tmp_path, plain, validation_dataset=dataset) as components:
        (status,) = await run_epochs(components, 1)
        (step,) = components.run.log.view.completed.values()
    assert (status.status.value, len(step.trained)) == ("completed", 6)
    assert len(rows_in(tmp_path / "output" / "validation_history.json")) == 2


def test_groups_with_similar_names_are_separate() -> None:
    groups = [[Trajectory(episode=[], reward=1.0, metadata={"id": name})] for name in ("a", "a", "a#2", "a")]
    names = list(example_names(TrajectoryCollection(trajectories=groups, run_id="r")))
    assert len(set(names)) == 4, names


def test_an_example_without_an_id_is_named_by_its_place() -> None:
    metadata: list[Any] = [{"id": None}, None, {}, {"id": 0}]
    groups = [[Trajectory(episode=[], reward=1.0, metadata=fields)] for fields in metadata]
    assert list(example_names(TrajectoryCollection(trajectories=groups, run_id="r"))) == ["0", "1", "2", "0#2"]


def call_of(calls: Any) -> Any:
    item = EpisodeItem(role=EpisodeItemRole.ASSISTANT, content="x", logprobs={}, metadata={"tool_calls": calls})
    return [(call["function"]["name"], call["function"]["arguments"]) for call in _message(item).get("tool_calls", ())]


@pytest.mark.parametrize("form", [{"args": {"a": 1}}, {"arguments": {"a": 1}}, {"arguments": '{"a": 1}'}])
def test_a_single_call_keeps_its_arguments_in_each_form(form: dict[str, Any]) -> None:
    call = {"name": "f", **form}
    assert call_of(call) == call_of([call]) == call_of(json.dumps([call])) == [("f", '{"a": 1}')]


@pytest.mark.parametrize("calls", [None, "", "null", "[]", []])
def test_a_message_may_have_no_calls(calls: Any) -> None:
    assert call_of(calls) == []


@pytest.mark.parametrize("calls", ["look it up", "[1]", [None], 7])
def test_calls_of_another_shape_are_a_configuration_error(calls: Any) -> None:
    with pytest.raises(ConfigurationError, match="is not a list of calls"):
        call_of(calls)


def test_a_run_whose_services_still_run_is_not_deleted(tmp_path: Path) -> None:
    record = RunRecord("r", "config.yml", {}, str(tmp_path / "output"), "agent", folder=tmp_path / "r")
    run_dir = record.folder / "data" / "run"
    run_dir.mkdir(parents=True)
    here = identify(os.getpid())
    assert here is not None
    write(run_dir, StartedService("kafka", here, "127.0.0.1:9092", 0))
    with pytest.raises(ConfigurationError, match=r"still run kafka.*settings\.yaml down"):
        delete_run(record)
    assert run_dir.is_dir()
    write(run_dir, StartedService("kafka", replace(here, start_ticks=here.start_ticks - 1), "127.0.0.1:9092", 0))
    delete_run(record)
    assert not record.folder.exists()


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
