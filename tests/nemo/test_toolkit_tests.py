"""The tests of the toolkit's ART plugin, one by one: which of ours shows the same, or why one does not apply.

`toolkit_tests.csv` is the list. What no other file shows is here.
"""

import csv
import re
from pathlib import Path

import pytest
from nat.data_models.finetuning import TrainingJobRef, TrainingStatusEnum

from rollbus.local.process.ports import find_free_port
from rollbus.nemo.components import BusTrainerAdapterConfig
from rollbus.nemo.trainer_adapter import BusTrainerAdapter
from rollbus.nemo.trajectory_builder import BusTrajectoryBuilder
from tests.nemo.world import RUN, document, new_run, run_epochs
from tests.web import QuietHandler, serve

TESTS = Path(__file__).parents[1]
ROWS = list(csv.DictReader((TESTS / "nemo" / "toolkit_tests.csv").read_text(encoding="utf-8").splitlines()))
THEIRS = {"trainer": 16, "trainer_adapter": 27, "trajectory_builder": 20}
"""Tests of each part in release 1.9."""


def test_every_test_of_the_toolkit_has_one_of_ours_or_a_reason() -> None:
    counts = {part: len({row["their test"] for row in ROWS if row["part"] == part}) for part in THEIRS}
    assert counts == THEIRS
    for row in ROWS:
        path, _, name = row["ours"].partition("::")
        if path:
            assert re.search(rf"def {name}\(", (TESTS / path).read_text(encoding="utf-8")), row
        else:
            assert row["why"], row


async def test_an_epoch_is_begun_and_finalized_once(tmp_path: Path) -> None:
    async with new_run(tmp_path, document(tmp_path, examples=1)) as components:
        builder = components.builder
        assert isinstance(builder, BusTrajectoryBuilder)
        assert (builder.evaluation_runs, builder.num_generations) == ({}, 2)
        with pytest.raises(ValueError, match="No evaluation runs found for run_id: unknown"):
            await builder.finalize("unknown")
        await builder.start_run(RUN, {"epoch": 0})
        assert len(builder.evaluation_runs[RUN]) == 2
        with pytest.raises(ValueError, match=f"Run {RUN} is already in progress"):
            await builder.start_run(RUN, {"epoch": 0})
        await builder.finalize(RUN, {"epoch": 0})
        assert builder.evaluation_runs == {}


async def test_a_validation_has_the_toolkits_fields(tmp_path: Path) -> None:
    dataset = str(tmp_path / "train.json")
    async with new_run(tmp_path, validation_dataset=dataset) as components:
        metrics = await components.trainer.run_validation_evaluation(4, RUN)
    first_fields = ("epoch", "dataset_type", "avg_reward", "min_reward", "max_reward", "num_examples")
    assert [metrics[name] for name in first_fields] == [4, "validation", 0.0, 0.0, 0.0, 3]


async def test_a_job_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    unknown = TrainingJobRef(run_id="unknown", backend="openpipe_art")
    async with new_run(tmp_path) as components:
        for ask in (components.trainer.trainer_adapter.status, components.trainer.trainer_adapter.wait_until_complete):
            with pytest.raises(ValueError, match="No training job found with run_id unknown"):
                await ask(unknown)


async def test_a_running_job_says_how_far_it_is(tmp_path: Path) -> None:
    async with new_run(tmp_path) as components:
        await run_epochs(components, 1)
        view, adapter = components.run.log.view, components.trainer.trainer_adapter
        ref = TrainingJobRef(run_id=RUN, backend="openpipe_art", metadata={"epoch": 0})
        view.completed.clear()  # as long as the step has no outcome on the log
        running = adapter._status(ref)  # type: ignore[attr-defined]
    assert (running.status, running.progress) == (TrainingStatusEnum.RUNNING, 0.0)
    assert running.message == "0 of 3 groups are trained"


async def is_healthy(port: int) -> bool:
    backend = {"ip": "127.0.0.1", "port": port}
    return await BusTrainerAdapter(BusTrainerAdapterConfig.model_validate({"backend": backend})).is_healthy()


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (404, False), (503, False)])
async def test_only_an_answer_of_200_is_healthy(status: int, healthy: bool) -> None:
    paths: list[str] = []

    class Health(QuietHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.answer({}, status)

    with serve(Health) as address:
        assert await is_healthy(int(address.rpartition(":")[2])) is healthy
    assert paths == ["/health"]
    assert not await is_healthy(find_free_port()), "nothing answers"


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy"])
async def test_no_proxy_of_the_environment_is_asked_for_a_server_on_this_machine(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """httpx makes no client at all where the environment names a SOCKS proxy and its package is missing."""
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv(variable, f"{'socks5' if variable == 'all_proxy' else 'http'}://127.0.0.1:{find_free_port()}")

    class Health(QuietHandler):
        def do_GET(self) -> None:
            self.answer({})

    with serve(Health) as address:
        assert await is_healthy(int(address.rpartition(":")[2]))
