"""`rollbus finetune`: what it reads, refuses and answers with, short of starting anything."""

import json
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from nat.data_models.finetuning import FinetuneRunConfig, TrainingJobStatus, TrainingStatusEnum

import rollbus.nemo.finetune
from rollbus.cli.root import rollbus as command
from rollbus.nemo.checks import FinetuneOptions
from rollbus.nemo.configuration import load_plan
from rollbus.nemo.finetune import concluded_well, name_run
from rollbus.nemo.runs.folder import RunRecord, hold_output, hold_run, newest_run, now, read_run, write_run
from rollbus.nemo.runs.processes import Processes
from rollbus.nemo.runs.settings import settings_of
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from tests.nemo.world import document


def write_plan(tmp_path: Path, **sections: Any) -> Path:
    path = tmp_path / "config.yml"
    path.write_text(yaml.safe_dump({**document(tmp_path), **sections}))
    return path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(command, ["finetune", *map(str, arguments)])


def test_check_says_what_a_configuration_would_do(tmp_path: Path) -> None:
    result = invoke("--config_file", write_plan(tmp_path), "--check", "-o", "finetuning.num_epochs", "7")
    assert result.exit_code == 0, result.output
    assert "2 attempts at each of " in result.output
    assert "7 times over the examples" in result.output


@pytest.mark.parametrize(
    ("sections", "options", "message"),
    [
        (
            {},
            "-o finetuning.num_epoch 7",
            "-o finetuning.num_epoch: finetuning.num_epoch: is not a setting; did you mean 'num_epochs'?",
        ),
        ({}, "--check -o finetuning.run_configuration.config_file x", "run_configuration: is set by the command line"),
        ({"finetuning": {}}, "", "no `finetuning` section with `enabled: true`"),
        (
            {"rollbus": {"settings": {"trainer": {"train": {"entropy": 1}}}}},
            "--check",
            "trainer.train.entropy: Extra inputs are not permitted",
        ),
        (
            {"rollbus": {"imports": ["torn"]}},
            "--check",
            "module 'torn' cannot be imported: SyntaxError: invalid syntax (torn.py, line 2)",
        ),
        ({"rollbus": {"data_dir": "nowhere"}}, "--resume", "nothing to resume"),
    ],
)
def test_a_mistake_is_named_without_a_traceback(
    tmp_path: Path, sections: dict[str, Any], options: str, message: str
) -> None:
    (tmp_path / "torn.py").write_text("value = 1\ndef x(:\n")
    result = invoke("--config_file", write_plan(tmp_path, **sections), *options.split())
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output


def record(folder: Path, **fields: Any) -> RunRecord:
    """A run's folder, as its command leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    options = FinetuneRunConfig(validation_interval=7, override=(("finetuning.num_epochs", "3"),))
    defaults: dict[str, Any] = {
        "run_id": folder.name,
        "config_file": str(folder.parent.parent / "config.yml"),
        "options": options.model_dump(mode="json", exclude={"config_file"}),
        "output_dir": str(folder.parent.parent / "output"),
        "model": "agent",
        "began_at": "2026-01-01T00:00:00",
        "folder": folder,
    }
    run_record = RunRecord(**{**defaults, **fields})
    write_run(run_record)
    return run_record


def runs(tmp_path: Path, verb: str, *arguments: str) -> Result:
    return invoke(verb, *arguments, "--data-dir", tmp_path / "state")


def test_runs_are_listed_with_their_state_epochs_and_rewards(tmp_path: Path) -> None:
    assert "has no run" in runs(tmp_path, "list").output
    record(tmp_path / "state" / "run-6", state="completed", policy_version=2)
    record(tmp_path / "state" / "run-7", began_at="2026-01-02T00:00:00")
    (tmp_path / "output").mkdir()
    lines = [{"epoch": n, "run_id": "run-6", "avg_reward": reward} for n, reward in enumerate((0.25, 0.5))]
    (tmp_path / "output" / "training_metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    completed, killed = [line for line in runs(tmp_path, "list").output.splitlines() if "run-" in line]
    assert completed.split() == ["run-6", "completed", "2026-01-01T00:00:00", "2", "0.2500", "→", "0.5000", "agent@2"]
    assert killed.split() == ["run-7", "killed", "2026-01-02T00:00:00", "0", "agent@0"]
    with hold_run(tmp_path / "state" / "run-7"):
        assert re.search(r"run-7 +running", runs(tmp_path, "list").output)


def test_a_run_shows_where_its_results_are_and_what_comes_next(tmp_path: Path) -> None:
    record(tmp_path / "state" / "run-6", state="failed", policy_version=2, checkpoint="art/0002")
    output = runs(tmp_path, "show", "run-6").output
    for text in ("run-6, failed\n", "agent@2 art/0002", "finetune resume run-6"):
        assert text in output
    assert "curves" not in output, "a trainer of one's own draws none"
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "training_metrics.jsonl").write_text('{"epoch": 0, "run_id": "run-6"}\n')
    (tmp_path / "output" / "reward_plot.png").touch()
    output = runs(tmp_path, "show", "run-6").output
    for text in ("run-6, failed, 1 epochs\n", "reward_plot.png"):
        assert text in output
    refused = runs(tmp_path, "show", "run-5")
    assert refused.exit_code == 1
    assert "no run has the folder" in refused.output


def test_a_run_is_resumed_with_the_options_of_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[FinetuneOptions] = []

    def run(options: FinetuneOptions, console: object) -> bool:
        seen.append(options)
        return True

    monkeypatch.setattr(rollbus.nemo.finetune, "run_finetune", run)
    write_plan(tmp_path)
    record(tmp_path / "state" / "run-6")
    result = runs(tmp_path, "resume", "run-6")
    assert result.exit_code == 0, result.output
    (options,) = seen
    assert options.plan.config.finetuning.num_epochs == 3, "overrides too"
    assert options.run.validation_interval == 7
    assert options.resume is not None
    assert options.resume.run_id == "run-6"


def test_a_run_is_deleted_when_no_process_has_it(tmp_path: Path) -> None:
    folder = record(tmp_path / "state" / "run-6").folder
    with hold_run(folder):
        refused = runs(tmp_path, "delete", "run-6", "--yes")
    assert "run 'run-6' is running" in refused.output
    assert folder.exists()
    assert runs(tmp_path, "delete", "run-6").exit_code == 1, "nothing was answered"
    assert runs(tmp_path, "delete", "run-6", "--yes").exit_code == 0
    assert not folder.exists()


def test_without_a_configuration_or_a_verb_both_are_named(tmp_path: Path) -> None:
    result = invoke()
    assert result.exit_code == 2
    assert "Missing option '--config_file', or a command: list, show" in result.output


def test_a_run_that_has_begun_is_not_begun_again_under_its_name(tmp_path: Path) -> None:
    path = write_plan(tmp_path, rollbus={"data_dir": str(tmp_path / "state"), "run_id": "run-7"})
    bus = load_plan(path).bus
    assert name_run(bus) == "run-7"
    record(tmp_path / "state" / "run-7")
    with pytest.raises(
        ConfigurationError, match="run 'run-7' has begun already; continue it with --resume, or name another"
    ):
        name_run(bus)


def test_the_newest_run_began_last_whatever_clock_was_on_the_wall(tmp_path: Path) -> None:
    record(tmp_path / "state" / "in-summer-time", began_at="2026-10-25T02:50:00+02:00")
    record(tmp_path / "state" / "in-winter-time", began_at="2026-10-25T02:10:00+01:00")
    record(tmp_path / "state" / "of-no-time", began_at="")
    assert newest_run(tmp_path / "state", tmp_path / "config.yml").run_id == "in-winter-time"
    assert datetime.fromisoformat(now()).utcoffset() is not None


def test_a_configuration_resumes_its_own_run_and_not_anothers(tmp_path: Path) -> None:
    path = write_plan(tmp_path, rollbus={"data_dir": str(tmp_path / "state")})
    record(tmp_path / "state" / "of-another", config_file=str(tmp_path / "other.yml"), began_at="2026-01-02T00:00:00")
    refused = invoke("--config_file", path, "--resume")
    assert refused.exit_code == 1
    assert "has no run of" in refused.output
    record(tmp_path / "state" / "of-this")
    assert newest_run(tmp_path / "state", path).run_id == "of-this"


def test_a_start_that_fails_leaves_the_run_to_resume_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_plan(tmp_path, rollbus={"data_dir": str(tmp_path / "state"), "run_id": "run-8"})
    record(tmp_path / "state" / "run-7")

    def fail(processes: Processes, *, with_stages: bool) -> None:
        raise UnavailableError("no broker")

    monkeypatch.setattr(Processes, "start", fail)
    assert "no broker" in invoke("--config_file", path).output
    assert newest_run(tmp_path / "state", tmp_path / "config.yml").run_id == "run-7"
    assert name_run(load_plan(path).bus) == "run-8", "its name is free"


def test_two_runs_do_not_write_to_one_folder(tmp_path: Path) -> None:
    path = write_plan(tmp_path, rollbus={"data_dir": str(tmp_path / "state")})
    with hold_output(tmp_path / "output"):
        result = invoke("--config_file", path)
    assert result.exit_code == 1
    assert "another run writes to" in result.output
    with hold_output(tmp_path / "output"):
        pass


def test_check_counts_the_examples_of_a_validation_configuration(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "config.yml"
    other.write_text(yaml.safe_dump(document(tmp_path / "other", examples=5)))
    result = invoke("--config_file", write_plan(tmp_path), "--check", "--validation_config_file", other)
    assert result.exit_code == 0, result.output
    assert f"validation {other}: 5 examples" in result.output


@pytest.mark.parametrize("check", [("--check",), ()])
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--result_json_path", "$[", "'$[' is not a JSON path"),
        ("-o", "eval.general.dataset.file_path none.json", "dataset none.json cannot be read as json"),
        ("--validation_dataset", "torn.json", "torn.json cannot be read as json"),
        ("--validation_dataset", "empty.csv", "dataset empty.csv has no example"),
    ],
)
def test_a_run_that_cannot_work_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: tuple[str, ...], option: str, value: str, message: str
) -> None:
    monkeypatch.setattr(rollbus.nemo.finetune, "Processes", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torn.json").write_text("{")
    (tmp_path / "empty.csv").write_text("id,question\n")
    result = invoke("--config_file", write_plan(tmp_path), *check, option, *value.split())
    assert result.exit_code == 1
    assert message in result.output, result.exception
    assert not (tmp_path / ".rollbus").exists()


def test_every_option_reaches_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[FinetuneOptions] = []

    def run(options: FinetuneOptions, console: object) -> bool:
        seen.append(options)
        return False

    monkeypatch.setattr(rollbus.nemo.finetune, "run_finetune", run)
    path, held_out = write_plan(tmp_path, rollbus={"data_dir": str(tmp_path / "state")}), tmp_path / "held_out.json"
    begun = record(tmp_path / "state" / "run-6")
    held_out.write_text("[]")
    result = invoke(
        *("--config_file", path, "--dataset", held_out, "--validation_dataset", held_out, "--resume"),
        *("--validation_interval", 2, "--validation_config_file", path, "--result_json_path", "$.a"),
        *("--endpoint", "http://x", "--endpoint_timeout", 9),
        *("-o", "trainer_adapters.a.training.beta", "0.5", "-o", "llms.policy.temperature", "0.7"),
    )
    assert result.exit_code == 1, "a run that failed says so"
    (options,) = seen
    run_config = options.run.model_dump(exclude={"config_file", "override"})
    assert run_config == {
        "dataset": str(held_out),
        "result_json_path": "$.a",
        "endpoint": "http://x",
        "endpoint_timeout": 9,
        "validation_dataset": str(held_out),
        "validation_interval": 2,
        "validation_config_file": str(path),
    }
    assert options.resume == read_run(begun.folder)
    trained = settings_of(options.plan, "r", "r.")["trainer"]["train"]
    assert trained["kl_coefficient"] == 0.5


@pytest.mark.parametrize(
    ("states", "well"),
    [
        (["completed", "completed"], True),
        (["completed", "failed"], False),
        (["canceled"], False),
        ([], False),
    ],
)
def test_only_a_run_without_a_failed_job_went_well(states: list[str], well: bool) -> None:
    statuses = [TrainingJobStatus(run_id="r", backend="b", status=TrainingStatusEnum(state)) for state in states]
    assert concluded_well(statuses) is well


@pytest.mark.parametrize("verb", ["", "resume", "evaluate", "serve"])
def test_a_toolkit_that_lacks_what_is_imported_is_refused_by_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    record(tmp_path / "state" / "old", config_file=str(path := write_plan(tmp_path)))
    monkeypatch.setattr("rollbus.nemo.toolkit_version.version", lambda name: "1.5.0")
    for name in [name for name in sys.modules if name.startswith("rollbus.nemo.")]:
        if not name.endswith((".runs", ".folder", ".toolkit_version")):
            monkeypatch.setitem(sys.modules, name, None)  # as if it asked for what is not there
    result = runs(tmp_path, verb, "old") if verb else invoke("--config_file", path, "--check")
    assert result.exit_code == 1
    assert "rollbus is made for nvidia-nat-core 1.9.x, and 1.5.0 is installed" in result.output


@pytest.mark.slow
def test_listing_runs_imports_no_toolkit(tmp_path: Path) -> None:
    program = f"""
import sys
from click.testing import CliRunner
from rollbus.cli.root import rollbus
assert CliRunner().invoke(rollbus, ["finetune", "list", "--data-dir", {str(tmp_path)!r}]).exit_code == 0
print("nat" in sys.modules)
result = CliRunner().invoke(rollbus, ["finetune", "--config_file", {str(write_plan(tmp_path))!r}, "--check"])
print("has no type 'test_ask'" in result.output, "nat" in sys.modules, {{"art", "torch"}} & set(sys.modules))
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert completed.stdout.splitlines() == ["False", "True True set()"]
