"""Whole epochs on the bus in memory: the same stages and the same trainer loop as live, in a second."""

import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nat.data_models.evaluator import EvalInputItem
from nat.data_models.finetuning import TrainingStatusEnum
from nat.plugins.eval.data_models.evaluator_io import EvalOutputItem

from rollbus.nemo.finetune import Components
from rollbus.nemo.runs import plot
from rollbus.nemo.runs.run import CURRENT, Run
from rollbus.schemas.errors import RejectedError, RunStoppedError
from rollbus.trainer.backends.memory import MemoryBackend
from rollbus.trainer.backends.protocol import TrainRequest
from tests.nemo.test_outcomes import crashing
from tests.nemo.world import (
    RUN,
    WORKFLOWS,
    Endpoint,
    ask,
    document,
    memory_bus,
    new_run,
    opened,
    read,
    rows_in,
    run_epochs,
)


def rows_of(tmp_path: Path) -> list[dict[str, Any]]:
    return rows_in(tmp_path / "output" / "training_metrics.jsonl")


def output(tmp_path: Path, name: str) -> Any:
    return json.loads((tmp_path / "output" / name).read_text())


async def test_two_epochs_are_played_grouped_trained_and_written_down(tmp_path: Path) -> None:
    config = read(tmp_path, document(tmp_path))
    bus, endpoint = memory_bus(config), Endpoint()
    async with opened(config, bus, endpoint, plots=True) as components:
        statuses = await run_epochs(components, 2)
        view = components.run.log.view
    assert [status.status for status in statuses] == [TrainingStatusEnum.COMPLETED] * 2
    assert len(endpoint.requests) == 2 * 3 * 2
    assert {request["model"] for request in endpoint.requests} == {"agent"}, "requests go to the model in training"
    assert [len(step.trained) for step in view.completed.values()] == [6, 6]
    rows = rows_of(tmp_path)
    assert [row["epoch"] for row in rows] == [0, 1]
    assert [row["num_trajectories"] for row in rows] == [6, 6]
    assert [row["avg_reward"] for row in rows] == [0.5, 0.5]
    assert (tmp_path / "output" / "reward_plot.png").stat().st_size > 1000
    files = [tmp_path / "output" / f"{name}_{RUN}.jsonl" for name in ("trajectory_builder", "trainer_adapter")]
    built, submitted = map(rows_in, files)
    assert {"timestamp", "run_id", "num_generations"} <= built[0].keys()
    model = {"base_model": "base", "project": "trainer_project", "name": "agent"}
    assert submitted[1]["trainer_config"] == model


async def test_the_rows_have_the_toolkits_fields(tmp_path: Path) -> None:
    async with new_run(tmp_path, document(tmp_path, curriculum_learning={"enabled": True})) as components:
        await run_epochs(components, 1)
    (row,) = rows_of(tmp_path)
    assert list(row)[:14] == [
        *("epoch", "timestamp", "run_id", "avg_reward", "min_reward", "max_reward", "num_trajectories", "num_groups"),
        *("filtered_trajectories", "filtered_groups", "filtered_avg_reward", "filtered_min_reward"),
        *("filtered_max_reward", "curriculum_percentile"),
    ]
    assert (row["num_groups"], row["filtered_groups"], row["curriculum_percentile"]) == (3, 1, 0.3)
    state = output(tmp_path, "curriculum_state.json")
    assert (state["current_percentile"], state["total_groups"]) == (0.3, 3)
    (included,) = state["included_groups"]
    assert included in range(3), "all three are worth the same: the one that closed first is in, counted by its example"


async def test_the_curriculum_expands_on_the_bus_as_in_the_toolkit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tuning = {"enabled": True, "expansion_interval": 2}
    async with new_run(tmp_path, document(tmp_path, examples=5, curriculum_learning=tuning)) as components:
        await run_epochs(components, 4)
    rows = rows_of(tmp_path)
    assert [row["curriculum_percentile"] for row in rows] == pytest.approx([0.3, 0.5, 0.5, 0.7])
    assert [row["filtered_groups"] for row in rows] == [2, 3, 3, 4]
    assert [row["filtered_trajectories"] for row in rows] == [4, 6, 6, 8]
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("rollbus.nemo")]
    messages = [message for message in messages if "curriculum" in message.lower()]
    assert messages[:3] == [
        "Curriculum learning at epoch 0: Using 2/5 groups (30.0%), 4 total trajectories. "
        "Avg reward range: [0.5000, 0.5000]",
        "Expanding curriculum at epoch 1: 30.0% -> 50.0% of trajectory groups",
        "Curriculum learning at epoch 1: Using 3/5 groups (50.0%), 6 total trajectories. "
        "Avg reward range: [0.5000, 0.5000]",
    ]


@pytest.mark.parametrize("ends_after", [1, 5, 7])
async def test_a_run_killed_in_the_middle_resumes_with_the_same_counts(tmp_path: Path, ends_after: int) -> None:
    class KillError(BaseException):
        pass

    calls = 0

    async def raise_kill(question: str, llm: Any) -> str:
        nonlocal calls
        calls += 1
        if calls > ends_after:
            raise KillError
        return await ask(question, llm)

    plain = document(tmp_path, curriculum_learning={"enabled": True, "initial_percentile": 0.6}, workflow=raise_kill)
    config = read(tmp_path, plain)
    bus, endpoint = memory_bus(config), Endpoint()
    with pytest.raises(BaseException) as refusal:  # noqa: PT011
        async with opened(config, bus, endpoint) as components:
            await run_epochs(components, 2)
    assert (
        refusal.group_contains(KillError)
        if isinstance(refusal.value, BaseExceptionGroup)
        else refusal.type is KillError
    )
    WORKFLOWS[raise_kill.__name__] = ask
    async with opened(config, bus, endpoint, resume=True) as components:
        statuses = await run_epochs(components, 2)
        view = components.run.log.view
    assert [status.status for status in statuses] == [TrainingStatusEnum.COMPLETED] * 2
    rows = rows_of(tmp_path)
    assert [(row["epoch"], row["num_trajectories"], row["filtered_groups"]) for row in rows] == [(0, 6, 2), (1, 6, 2)]
    assert sorted(len(step.trained) for step in view.completed.values()) == [4, 4]


async def test_a_resumed_finished_run_makes_no_request_and_writes_no_line(tmp_path: Path) -> None:
    config = read(tmp_path, document(tmp_path))
    bus, endpoint = memory_bus(config), Endpoint()
    async with opened(config, bus, endpoint) as components:
        await run_epochs(components, 1)
    async with opened(config, bus, endpoint, resume=True) as components:
        await run_epochs(components, 2)
    metrics = tmp_path / "output" / "training_metrics.jsonl"
    before, request_count = rows_in(metrics, "timestamp"), len(endpoint.requests)
    async with opened(config, bus, endpoint, resume=True) as components:
        await run_epochs(components, 2)
        assert len(components.run.log.view.completed) == 2
    assert len(endpoint.requests) == request_count
    assert rows_in(metrics, "timestamp") == before
    for name in ("trajectory_builder", "trainer_adapter"):
        assert [row["epoch"] for row in rows_in(tmp_path / "output" / f"{name}_{RUN}.jsonl")] == [0, 1], name


async def flaky(question: str, llm: Any) -> str:
    """Fails the first time that it is asked about question 1."""
    reply = await ask(question, llm)
    if question == "question 1" and reply == "1":
        raise ValueError("broken")
    return reply


async def test_a_failed_attempt_is_made_again_and_stays_on_record(tmp_path: Path) -> None:
    async with new_run(tmp_path, document(tmp_path, workflow=flaky)) as components:
        await run_epochs(components, 1)
        view = components.run.log.view
    assert rows_of(tmp_path)[0]["num_trajectories"] == 6
    assert [reason.split()[0] for reason in view.drop_reasons.values()] == ["score_missing"]


async def test_an_example_that_always_fails_costs_that_example_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with new_run(tmp_path, document(tmp_path, workflow=crashing)) as components:
        (status,) = await run_epochs(components, 1)
    (line,) = (record.getMessage() for record in caplog.records if "left out of epoch" in record.getMessage())
    assert re.fullmatch(r"left out of epoch 1: crashed \(ValueError: broken \(.*, in crashing\)\): 6", line)
    assert status.status is TrainingStatusEnum.COMPLETED
    assert (rows_of(tmp_path)[0]["num_trajectories"], rows_of(tmp_path)[0]["num_groups"]) == (4, 2)


def unsure(item: EvalInputItem) -> float | None:
    """A missing score is not a zero."""
    return None if item.id == "e1" else float(int(item.output_obj) % 2 == 0)


async def test_an_attempt_without_a_score_is_left_out_and_not_zero(tmp_path: Path) -> None:
    async with new_run(tmp_path, document(tmp_path, score=unsure)) as components:
        await run_epochs(components, 1)
    assert (rows_of(tmp_path)[0]["num_trajectories"], rows_of(tmp_path)[0]["avg_reward"]) == (4, 0.5)


def word_or_number(item: EvalInputItem) -> Any:
    return "good" if item.id == "e0" else float(int(item.output_obj) % 2)


async def test_scores_that_are_not_numbers_drop_their_attempts(tmp_path: Path) -> None:
    plain, dataset = document(tmp_path, score=word_or_number), str(tmp_path / "train.json")
    async with new_run(tmp_path, plain, validation_dataset=dataset) as components:
        (status,) = await run_epochs(components, 1)
        metrics = await components.trainer.run_validation_evaluation(0, RUN)
    assert (status.status.value, metrics["num_examples"]) == ("completed", 2)
    assert rows_of(tmp_path)[0]["num_trajectories"] == 4


class ShapedItem(EvalOutputItem):
    shaped_rewards: list[float]


def shape_rewards(item: EvalInputItem) -> EvalOutputItem:
    """A step's reward in addition to the result's."""
    good = float(int(item.output_obj) % 2 == 0)
    return ShapedItem(id=item.id, score=good, reasoning="", shaped_rewards=[0.25])


async def test_rewards_of_steps_count_and_stand_at_their_turns(tmp_path: Path) -> None:
    async with new_run(tmp_path, document(tmp_path, score=shape_rewards)) as components:
        await components.builder.start_run(RUN, {"epoch": 0})
        collection = await components.builder.finalize(RUN, {"epoch": 0})
        view = components.run.log.view
    first_group = collection.trajectories[0]
    assert sorted(trajectory.reward for trajectory in first_group) == [0.0, 1.0]
    assert [trajectory.shaped_rewards for trajectory in first_group] == [[0.25], [0.25]]
    group = next(iter(view.groups.values()))
    assert sorted(member.reward for member in group.members) == [0.25, 1.25]
    report = next(reward for reward in next(iter(view.trajectories.values())).rewards if reward.name == "good.step")
    assert report.turn_event_id is not None


class UncheckedItem(EvalOutputItem):
    shaped_rewards: Any


@pytest.mark.parametrize("shaped", [[None], 0.5, [float("nan")]])
async def test_steps_without_numbers_drop_their_attempt_alone(tmp_path: Path, shaped: Any) -> None:
    def shape_one(item: EvalInputItem) -> EvalOutputItem:
        good = float(int(item.output_obj) % 2 == 0)
        return UncheckedItem(id=item.id, score=good, reasoning="", shaped_rewards=shaped if item.id == "e0" else [0.25])

    async with new_run(tmp_path, document(tmp_path, score=shape_one)) as components:
        (status,) = await run_epochs(components, 1)
    assert status.status.value == "completed"
    assert rows_of(tmp_path)[0]["num_trajectories"] == 4


async def test_a_built_trajectory_carries_messages_and_log_probs(tmp_path: Path) -> None:
    async with new_run(tmp_path, document(tmp_path, examples=1)) as components:
        await components.builder.start_run(RUN)
        collection = await components.builder.finalize(RUN)
    (group,) = collection.trajectories
    messages: list[Any] = list(group[0].episode)
    question, reply = messages
    assert (question.role.value, question.content, question.logprobs) == ("user", "question 0", None)
    assert reply.role.value == "assistant"
    assert reply.logprobs["content"][0]["logprob"] == -0.5
    assert reply.logprobs["prompt_token_ids"] == [ord(letter) for letter in "question 0"]
    assert {"id", "run_id", "generation"} <= (group[0].metadata or {}).keys()


async def test_a_single_generation_is_grouped_by_example_with_a_baseline(tmp_path: Path) -> None:
    plain = document(tmp_path)
    plain["trajectory_builders"]["b"]["num_generations"] = 1
    async with new_run(tmp_path, plain) as components:
        await components.builder.start_run(RUN, {"epoch": 0})
        collection = await components.builder.finalize(RUN, {"epoch": 0})
        assert [len(group) for group in collection.trajectories] == [1, 1, 1]
    async with new_run(tmp_path, plain) as components:
        await run_epochs(components, 2)
        assert [len(step.trained) for step in components.run.log.view.completed.values()] == [3]


async def test_several_steps_an_epoch_are_one_job(tmp_path: Path) -> None:
    plain = document(tmp_path, examples=5)
    plain["rollbus"]["groups_per_step"] = 2
    async with new_run(tmp_path, plain) as components:
        (status,) = await run_epochs(components, 1)
        assert [len(step.trained) for step in components.run.log.view.completed.values()] == [4, 4, 2]
    assert (status.progress, (status.metadata or {})["steps"]) == (100.0, 3)


async def test_learning_rate_and_beta_reach_the_request(tmp_path: Path) -> None:
    seen: list[TrainRequest] = []

    def look(point: str, request: TrainRequest) -> None:
        seen.append(request)

    async with new_run(tmp_path, backend=MemoryBackend(model="agent", fault=look)) as components:
        await run_epochs(components, 1)
    assert {(train_request.config.learning_rate, train_request.config.kl_coefficient) for train_request in seen} == {
        (1e-4, 0.25)
    }


async def test_a_backend_without_memory_ends_the_run_with_what_to_change(tmp_path: Path) -> None:
    def full(point: str, request: TrainRequest) -> None:
        raise RejectedError("CUDA out of memory. Tried to allocate 2 GiB")

    async with new_run(tmp_path, backend=MemoryBackend(model="agent", fault=full)) as components:
        statuses = await run_epochs(components, 3)
    assert [status.status for status in statuses] == [TrainingStatusEnum.FAILED]
    assert "reduce `engine_args.gpu_memory_utilization`" in (statuses[0].message or "")


async def test_answers_without_log_probs_end_the_run_with_what_to_look_at(tmp_path: Path) -> None:
    async with new_run(tmp_path, model=Endpoint(with_tokens=False)) as components:
        with pytest.raises(RunStoppedError, match=r"No valid assistant messages with logprobs .*no_logprobs"):
            await run_epochs(components, 1)


async def test_a_target_that_nothing_calls_ends_the_run_with_what_to_look_at(tmp_path: Path) -> None:
    async with new_run(tmp_path, document(tmp_path, target_functions=["other"])) as components:
        message = r"No trajectories collected for epoch 1 .*target_functions \['other'\]"
        with pytest.raises(RunStoppedError, match=message):
            await run_epochs(components, 1)


async def test_a_solved_task_ends_well_with_its_final_validation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run: dict[str, Any] = {"validation_dataset": str(tmp_path / "train.json"), "validation_interval": 100}
    async with new_run(tmp_path, document(tmp_path, score=lambda item: 1.0), **run) as components:
        statuses = await run_epochs(components, 9)
    assert [status.status for status in statuses] == [TrainingStatusEnum.COMPLETED] * 5
    assert [row["epoch"] for row in output(tmp_path, "validation_history.json")] == [0, 5]
    assert "Rewards are not increasing" not in caplog.text, "there is nothing left to gain"


async def test_flat_rewards_end_the_run_with_what_to_look_at(tmp_path: Path) -> None:
    async with new_run(tmp_path, document(tmp_path, score=lambda item: 0.5)) as components:
        with pytest.raises(RunStoppedError, match="Rewards are flat: 5 epochs in a row"):
            await run_epochs(components, 9)
    assert len(rows_of(tmp_path)) == 4


async def test_an_epoch_that_trains_nothing_is_an_error_of_the_toolkits_command_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with new_run(tmp_path, document(tmp_path, score=lambda item: 0.5)) as components:
        run = components.run

        @asynccontextmanager
        async def begin_run(*configurations: Any) -> AsyncIterator[Run]:
            CURRENT.set(run)
            yield run

        monkeypatch.setattr("rollbus.nemo.finetune.begin_run", begin_run)
        CURRENT.set(None)  # as `nat finetune` has it, which opens no run
        await components.trainer.initialize(components.trainer.run_config)
        with pytest.raises(RunStoppedError, match="nothing was trained in epoch 1, 2"):
            await run_epochs(components, 2)
    assert not run.is_well


async def test_validation_runs_by_interval_and_at_the_end_and_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[list[int]] = []
    monkeypatch.setattr(plot, "draw", lambda path, training, rows: drawn.append([row["epoch"] for row in rows]))
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text("\n".join(json.dumps({"id": f"v{n}", "question": f"held out {n}"}) for n in range(4)))
    run: dict[str, Any] = {"validation_dataset": str(held_out), "validation_interval": 2}
    async with new_run(tmp_path, plots=True, **run) as components:
        await run_epochs(components, 3)
        assert not any(
            "held out" in str(trajectory.turns) for trajectory in components.run.log.view.trajectories.values()
        )
    rows = output(tmp_path, "validation_history.json")
    assert [row["epoch"] for row in rows] == [0, 2, 3]
    assert drawn[-1] == [0, 2, 3], "the last picture shows the last validation"
    assert [row["avg_reward"] for row in rows] == [0.0, 1.0, 0.0], "the n-th answer to a question says n"
    fields = ["epoch", "timestamp", "avg_reward", "min_reward", "max_reward", "num_examples"]
    assert list(rows[0]) == [*fields, "avg_reward_low", "avg_reward_high"]


async def test_a_validation_of_one_example_has_no_interval(tmp_path: Path) -> None:
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text(json.dumps({"id": "v", "question": "held out"}))
    plain = document(tmp_path, score=lambda item: 0.5)
    async with new_run(tmp_path, plain, validation_dataset=str(held_out)) as components:
        await run_epochs(components, 1)
    for row in output(tmp_path, "validation_history.json"):
        assert list(row) == ["epoch", "timestamp", "avg_reward", "min_reward", "max_reward", "num_examples"]


async def always_two(question: str, llm: Any) -> str:
    return "2"


@pytest.mark.parametrize(("own_dataset", "examples"), [(True, 5), (False, 3)])
async def test_a_validation_configuration_uses_the_named_dataset_or_its_own(
    tmp_path: Path, own_dataset: bool, examples: int
) -> None:
    (other := tmp_path / "other").mkdir()
    read(other, document(other, examples=5, workflow=always_two))
    run: dict[str, Any] = {} if own_dataset else {"validation_dataset": str(tmp_path / "train.json")}
    async with new_run(tmp_path, validation_config_file=str(other / "config.yml"), **run) as components:
        await run_epochs(components, 1)
    rows = output(tmp_path, "validation_history.json")
    assert [(row["num_examples"], row["avg_reward"]) for row in rows] == [(examples, 1.0)] * 2
    assert rows_of(tmp_path)[0]["avg_reward"] == 0.5, "training goes on with its own"


async def test_validation_counts_the_rewards_of_steps_as_training_does(tmp_path: Path) -> None:
    plain, dataset = document(tmp_path, score=shape_rewards, workflow=always_two), str(tmp_path / "train.json")
    async with new_run(tmp_path, plain, validation_dataset=dataset) as components:
        metrics = await components.trainer.run_validation_evaluation(0, RUN)
    assert metrics["rewards"] == [1.25, 1.25, 1.25]


async def test_progress_is_written_to_the_callers_folder(tmp_path: Path) -> None:
    async with new_run(tmp_path) as components:
        await run_epochs(components, 1)
        components.trainer.log_progress(0, rows_of(tmp_path)[0], output_dir=str(tmp_path / "elsewhere"))
    assert (tmp_path / "elsewhere" / "training_metrics.jsonl").exists()


async def test_a_job_may_be_asked_about_after_its_end(tmp_path: Path) -> None:
    async with new_run(tmp_path) as components:
        await run_epochs(components, 1)
        metrics = await components.trainer.get_metrics(RUN)
    assert [job["status"]["status"].value for job in metrics["jobs"]] == ["completed"]
    assert metrics["epochs"][0]["step_policy_version"] == 1


async def test_cleanup_ends_the_attempts_in_progress(tmp_path: Path) -> None:
    components: Components
    async with new_run(tmp_path) as components:
        await components.builder.start_run(RUN, {"epoch": 0})
    tasks = getattr(components.builder, "evaluation_runs")  # noqa: B009
    assert all(task.done() for played in tasks.values() for task in played)
