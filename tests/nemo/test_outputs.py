"""The files of a run: their fields, their order, and what a kill leaves."""

import json
from pathlib import Path
from typing import Any

from rollbus.nemo.runs.outputs import Outputs, append_line
from rollbus.nemo.runs.plot import curves

METRICS: dict[str, Any] = {"avg_reward": 0.5, "min_reward": 0.0, "max_reward": 1.0, "num_trajectories": 8}


def outputs(folder: Path) -> Outputs:
    return Outputs(folder, now=lambda: "2026-01-01T00:00:00")


def test_an_epoch_written_again_replaces_its_line(tmp_path: Path) -> None:
    run_outputs = outputs(tmp_path)
    for epoch, reward in ((0, 0.1), (1, 0.2), (0, 0.3)):
        run_outputs.training(epoch, "r", {**METRICS, "avg_reward": reward})
    assert [(row["epoch"], row["avg_reward"]) for row in run_outputs.training_rows()] == [(0, 0.3), (1, 0.2)]
    history = json.loads((tmp_path / "reward_history.json").read_text())
    assert history[0] == {"epoch": 0, "timestamp": "2026-01-01T00:00:00", **METRICS, "avg_reward": 0.3}


def test_a_torn_line_is_left_out_and_mended(tmp_path: Path) -> None:
    (tmp_path / "training_metrics.jsonl").write_text('{"epoch": 0, "avg_reward": 0.5}\n{"epoch": 1, "avg')
    run_outputs = outputs(tmp_path)
    assert [row["epoch"] for row in run_outputs.training_rows()] == [0]
    run_outputs.training(1, "r", METRICS)
    assert [row["epoch"] for row in run_outputs.training_rows()] == [0, 1]


def test_a_failed_validation_has_no_reward_and_its_reason(tmp_path: Path) -> None:
    run_outputs = outputs(tmp_path)
    failed = {"avg_reward": None, "num_examples": 0, "error": "no endpoint"}
    run_outputs.validation(0, failed)
    assert run_outputs.validation_rows() == [{"epoch": 0, "timestamp": "2026-01-01T00:00:00", **failed}]


def test_the_plot_has_every_curve_that_has_points() -> None:
    training: list[dict[str, Any]] = [
        {"epoch": 0, "avg_reward": 0.1, "filtered_avg_reward": 0.2, "curriculum_percentile": 0.3},
        {"epoch": 1, "avg_reward": 0.3, "filtered_avg_reward": None, "curriculum_percentile": 0.5},
    ]
    assert curves(training, [{"epoch": 0, "avg_reward": 0.4}, {"epoch": 1, "avg_reward": None}]) == {
        "Training reward": [(0, 0.1), (1, 0.3)],
        "Training reward, after the curriculum": [(0, 0.2)],
        "Validation reward": [(0, 0.4)],
        "Share of groups admitted": [(0, 0.3), (1, 0.5)],
    }
    assert curves([{"epoch": 0, "avg_reward": None}], []) == {}


def test_a_new_run_does_not_mix_with_an_earlier_one(tmp_path: Path) -> None:
    run_outputs = outputs(tmp_path)
    run_outputs.training(0, "r", METRICS)
    run_outputs.clear()
    assert run_outputs.training_rows() == []


def test_files_missing_after_a_kill_are_derived_from_the_epochs_lines(tmp_path: Path) -> None:
    run_outputs = outputs(tmp_path)
    state = {"current_percentile": 0.5, "included_groups": [1]}
    run_outputs.training(0, "r", {**METRICS, "curriculum_state": state})
    for name in ("reward_history.json", "curriculum_state.json"):
        (tmp_path / name).unlink()
    run_outputs.derive()
    assert [row["epoch"] for row in json.loads((tmp_path / "reward_history.json").read_text())] == [0]
    assert json.loads((tmp_path / "curriculum_state.json").read_text()) == state == run_outputs.curriculum_state()


def test_a_line_that_is_there_is_not_appended_again(tmp_path: Path) -> None:
    path = tmp_path / "trainer_adapter_r.jsonl"
    path.write_text('{"epoch": 0, "torn')
    for epoch in (1, 1, 2):
        append_line(path, {"epoch": epoch, "status": "completed"})
    lines = path.read_text().splitlines()[1:]
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]
