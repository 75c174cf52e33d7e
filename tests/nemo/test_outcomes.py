"""How a run ends and what it says: crashes have a policy, validation counts them, and words mean what happened."""

import asyncio
import json
import logging
import re
import signal
import sys
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.graph import StateGraph
from nat.data_models.evaluator import EvalInputItem
from nat.data_models.finetuning import FinetuneRunConfig, TrainingJobStatus, TrainingStatusEnum
from rich.console import Console

from rollbus.local.process.supervisor import EndedBySignal
from rollbus.nemo.checks import FinetuneOptions, describe
from rollbus.nemo.finetune import concluded_well
from rollbus.nemo.finetune import run_epochs as start_epochs
from rollbus.nemo.production import telemetry
from rollbus.nemo.runs.event_loop import run_to_end
from rollbus.nemo.runs.folder import RunRecord, read_run
from rollbus.nemo.runs.run import opened_run
from rollbus.nemo.show import show_log_lines
from rollbus.schemas.errors import ConfigurationError, RunStoppedError
from tests.nemo.bus_memory import MemoryBus
from tests.nemo.world import RUN, SCORES, ask, document, memory_bus, new_run, read, run_epochs


async def crashing(question: str, llm: Any) -> str:
    """Crashes at question 1, each time."""
    reply = await ask(question, llm)
    if question == "question 1":
        raise ValueError("broken")
    return reply


def raising(item: EvalInputItem) -> float:
    raise KeyError("no such column")


def crashing_document(tmp_path: Path, **builder: Any) -> dict[str, Any]:
    plain = document(tmp_path, workflow=crashing)
    plain["trajectory_builders"]["b"] |= {"max_attempts": 1, **builder}
    return plain


async def test_a_crashed_attempt_has_the_failure_reward_and_a_logged_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with new_run(tmp_path, crashing_document(tmp_path, failure_reward=-1.0)) as components:
        await run_epochs(components, 1)
        groups = list(components.run.log.view.groups.values())
    assert sorted(tuple(member.reward for member in group.members) for group in groups)[0] == (-1.0, -1.0)
    (place,) = {record.getMessage() for record in caplog.records if "example e1 failed" in record.getMessage()}
    assert "ValueError: broken (" in place
    assert place.endswith("in crashing)")
    assert "test_outcomes.py, line" in place


async def test_a_crash_counts_as_failed_in_a_validation(tmp_path: Path) -> None:
    dataset = str(tmp_path / "train.json")
    async with new_run(tmp_path, crashing_document(tmp_path), validation_dataset=dataset) as components:
        await components.trainer.run_validation_evaluation(
            0, RUN
        )  # the second answer to a question is even, which is good
        metrics = await components.trainer.run_validation_evaluation(0, RUN)
    assert (metrics["num_examples"], sorted(metrics["rewards"])) == (3, [0.0, 1.0, 1.0])


async def exit_at_question_1(question: str, llm: Any) -> str:
    if question == "question 1":
        sys.exit("broken")
    return await ask(question, llm)


async def await_a_cancelled_task(question: str, llm: Any) -> str:
    answering = asyncio.create_task(ask(question, llm))
    if question == "question 1":
        answering.cancel()
    return await answering


@pytest.mark.parametrize("workflow", [exit_at_question_1, await_a_cancelled_task])
async def test_a_workflow_that_exits_or_is_cancelled_costs_its_own_example_only(
    tmp_path: Path, workflow: Any, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = str(tmp_path / "train.json")
    async with new_run(tmp_path, document(tmp_path, workflow=workflow), validation_dataset=dataset) as components:
        (status,) = await run_epochs(components, 1)
        (step,) = components.run.log.view.completed.values()
    assert (status.status, len(step.trained)) == (TrainingStatusEnum.COMPLETED, 4)
    assert re.search(r"example e1 failed: (SystemExit: broken|CancelledError: )", caplog.text)


class Asked(TypedDict):
    question: str
    answer: str


async def exit_in_a_graph(question: str, llm: Any) -> str:
    async def answer(state: Asked) -> dict[str, str]:
        return {"answer": await exit_at_question_1(state["question"], llm)}

    graph = StateGraph(Asked)
    graph.add_node("answer", answer)
    graph.set_entry_point("answer")
    return str((await graph.compile().ainvoke({"question": question, "answer": ""}))["answer"])


def test_a_graph_whose_node_exits_costs_its_own_example_only(tmp_path: Path) -> None:
    async def run() -> list[int]:
        async with new_run(tmp_path, document(tmp_path, workflow=exit_in_a_graph)) as components:
            await run_epochs(components, 1)
            return [len(step.trained) for step in components.run.log.view.completed.values()]

    assert run_to_end(run()) == [4]


def test_what_exits_by_itself_or_is_signalled_ends_the_loop() -> None:
    ended = list[str]()

    async def wait(ending: Any) -> None:
        asyncio.get_running_loop().call_soon(ending)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    async def leave() -> None:
        sys.exit(3)

    def be_signalled() -> None:
        raise EndedBySignal(143)

    with pytest.raises(SystemExit, match="3"):
        run_to_end(leave())
    with pytest.raises(EndedBySignal):
        run_to_end(wait(be_signalled))
    with pytest.raises(KeyboardInterrupt):
        run_to_end(wait(lambda: signal.raise_signal(signal.SIGINT)))
    assert ended == ["cleaned up"] * 2


async def test_a_cancelled_run_does_not_make_its_attempts_again(tmp_path: Path) -> None:
    begun, all_begun = list[str](), asyncio.Event()

    async def wait_for_ever(question: str, llm: Any) -> str:
        begun.append(question)
        if len(begun) == 6:
            all_begun.set()
        await asyncio.Event().wait()
        return question

    async with new_run(tmp_path, document(tmp_path, workflow=wait_for_ever)) as components:
        running = asyncio.create_task(run_epochs(components, 1))
        await all_begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert len(begun) == 6


@pytest.mark.parametrize("error", [SystemExit(1), asyncio.CancelledError()])
async def test_an_evaluator_that_exits_or_is_cancelled_costs_its_own_scores_only(
    tmp_path: Path, error: BaseException
) -> None:
    def ending(item: EvalInputItem) -> float:
        raise error

    plain = document(tmp_path)
    SCORES["ending"] = ending
    plain["eval"]["evaluators"]["other"] = {"_type": "test_score", "how": "ending"}
    async with new_run(tmp_path, plain) as components:
        (status,) = await run_epochs(components, 1)
    assert status.status is TrainingStatusEnum.COMPLETED


async def test_an_evaluator_that_raises_costs_its_own_scores_only(tmp_path: Path) -> None:
    plain = document(tmp_path)
    SCORES["raising"] = raising
    plain["eval"]["evaluators"]["other"] = {"_type": "test_score", "how": "raising"}
    async with new_run(tmp_path, plain) as components:
        (status,) = await run_epochs(components, 1)
        (step,) = components.run.log.view.completed.values()
    assert (status.status, len(step.trained)) == (TrainingStatusEnum.COMPLETED, 6)


@pytest.mark.parametrize(
    ("untrained", "message"),
    [
        ({}, "Finetuning completed successfully!"),
        ({1: {"too_short": 60}}, "Finetuning ended, and nothing was trained in epoch 2 (too_short: 60); see what"),
        ({0: {}, 1: {}}, "Finetuning ended, and nothing was trained in epoch 1, 2 (no trajectory reached the trainer)"),
        (
            {0: {"off_lineage (step 1, group a)": 1, "off_lineage (step 1, group b)": 2}},
            "nothing was trained in epoch 1 (off_lineage (such as step 1, group a): 3); see",
        ),
    ],
)
def test_a_run_ends_well_only_where_every_epoch_trained(
    untrained: dict[int, dict[str, int]], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    status = TrainingJobStatus(run_id="r", backend="b", status=TrainingStatusEnum.COMPLETED)
    assert concluded_well([status, status], untrained) is (not untrained)
    assert message in caplog.text


async def test_an_evaluators_exception_is_shown_with_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = document(tmp_path, score=raising)
    place = r"KeyError: 'no such column' \(.*test_outcomes.py, line \d+, in raising\)"
    dataset = str(tmp_path / "train.json")
    async with new_run(tmp_path, plain, validation_dataset=dataset) as components:
        metrics = await components.trainer.run_validation_evaluation(0, RUN)
        with pytest.raises(RunStoppedError, match=rf"evaluator 'good' raised {place}; score_missing"):
            await run_epochs(components, 1)
    assert re.search(f"the evaluator raised {place}", metrics["error"])
    logged_lines = [record.getMessage() for record in caplog.records if record.name.startswith("rollbus.nemo")]
    assert any(re.search(f"evaluator 'good' raised {place}", line) for line in logged_lines)


def test_rows_with_one_id_are_named(tmp_path: Path) -> None:
    plan = read(tmp_path, document(tmp_path))
    rows = [{"id": name, "question": "?"} for name in ("e1", "e2", "e1", "e1", "e2")]
    (tmp_path / "train.json").write_text(json.dumps(rows))
    description = describe(FinetuneOptions(plan, FinetuneRunConfig()))
    assert "2 attempts at each of 2 examples" in description
    assert "3 of 5 rows are left out, since an earlier row has their id: 'e1', 'e2'" in description


def test_the_log_lines_of_a_users_code_are_shown(tmp_path: Path) -> None:
    console = Console(file=StringIO(), width=200)
    with show_log_lines(console):
        logging.getLogger("my_agent").info("asked the shop")
    assert console.file.getvalue() == "INFO - asked the shop\n"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("workflow", "llm", "polcy", "the workflow cannot be built: .*polcy"),
        ("finetuning", "target_functions", ["<workfow>"], "no function '<workfow>'; did you mean '<workflow>'"),
        ("finetuning", "target_model", "bse", "no model 'bse'; did you mean 'base'"),
    ],
)
def test_check_finds_wrong_names(tmp_path: Path, section: str, key: str, value: Any, message: str) -> None:
    plain = document(tmp_path)
    plain[section][key] = value
    with pytest.raises(ConfigurationError, match=message):
        describe(FinetuneOptions(read(tmp_path, plain), FinetuneRunConfig()))


def test_check_makes_no_exporter_and_no_log_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, made = document(tmp_path), list[Any]()
    monkeypatch.setattr(telemetry, "recorder_of", made.append)
    log_file = {"_type": "file", "path": str(tmp_path / "agent.log"), "level": "INFO"}
    plain["general"] = {"telemetry": {"tracing": {"rollbus": {"_type": "rollbus"}}, "logging": {"file": log_file}}}
    assert "2 attempts at each of 3" in describe(FinetuneOptions(read(tmp_path, plain), FinetuneRunConfig()))
    assert not made
    assert not (tmp_path / "agent.log").exists()


async def test_a_run_makes_no_exporter_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, made = document(tmp_path), list[Any]()
    monkeypatch.setattr(telemetry, "recorder_of", made.append)
    plain["general"] = {"telemetry": {"tracing": {"rollbus": {"_type": "rollbus"}}}}
    async with new_run(tmp_path, plain) as components:
        await run_epochs(components, 1)
    assert not made


class Nothing:
    """The processes of a run that needs none."""

    namespace = "test."

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus

    def bus(self, *, resume: bool, began_at: str) -> MemoryBus:
        return self._bus

    def check(self) -> None:
        pass

    async def drain(self) -> None:
        pass


@pytest.mark.parametrize(
    ("ended_by", "state"),
    [
        (SystemExit(143), "interrupted"),
        (KeyboardInterrupt(), "interrupted"),
        (asyncio.CancelledError(), "interrupted"),
        (RunStoppedError("flat"), "failed"),
        (None, "completed"),
    ],
)
async def test_a_run_says_what_ended_it(tmp_path: Path, ended_by: BaseException | None, state: str) -> None:
    plan = read(tmp_path, document(tmp_path))
    (folder := tmp_path / "state" / "run-1").mkdir(parents=True)
    record = RunRecord("run-1", "config.yml", {}, str(tmp_path / "output"), "agent", folder=folder)
    with suppress(type(ended_by) if ended_by else ValueError):
        async with opened_run(plan, record, Nothing(memory_bus(plan)), resume=False):  # type: ignore[arg-type]
            if ended_by is not None:
                raise ended_by
    assert read_run(folder).state == state


async def test_an_error_of_an_own_trainer_is_shown_with_its_place(tmp_path: Path) -> None:
    async with new_run(tmp_path) as components:

        async def run(num_epochs: int) -> Any:
            raise KeyError("no such column")

        components.trainer.run = run  # type: ignore[method-assign]
        with pytest.raises(RunStoppedError, match=r"KeyError: 'no such column' \(.*test_outcomes.py, line \d+, in run"):
            await start_epochs(components)
