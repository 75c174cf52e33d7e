"""`rollbus run create` prints a run that the settings take, and says what is wrong with one that they do not."""

from pathlib import Path

import yaml
from click.testing import CliRunner

from rollbus.cli.root import rollbus
from rollbus.schemas.records.config import RunConfig


def invoke(*arguments: str, expect: int = 0) -> str:
    result = CliRunner().invoke(rollbus, ["run", *arguments])
    assert result.exit_code == expect, result.output
    return result.stdout if expect == 0 else result.output


def test_a_new_run_is_printed_as_the_settings_take_it() -> None:
    text = invoke("create", "small", "--model", "agent-small", "--task", "refund", "--group-size", "4")
    (plain,) = yaml.safe_load(text)
    run = RunConfig.model_validate(plain)
    assert (run.run_id, run.model, run.filter.tasks, run.grouping.group_size) == (
        "small",
        "agent-small",
        ("refund",),
        4,
    )
    assert plain.keys() == {"run_id", "model", "filter", "grouping"}


def test_options_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("grouping: {group_size: 3, window_ms: 5}\n")
    (plain,) = yaml.safe_load(invoke("create", "small", "--file", str(path), "--group-size", "4"))
    assert plain["grouping"] == {"group_size": 4, "window_ms": 5}


def test_a_wrong_run_is_refused_with_every_mistake(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("grouping: {group_sise: 3}\nbatching: {groups_per_step: 0}\n")
    text = invoke("create", "Small!", "--file", str(path), expect=1)
    assert all(name in text for name in ("run_id", "grouping.group_sise", "batching.groups_per_step"))
    assert "grouping.group_sise: is not a setting; did you mean 'group_size'?" in text
    for content, message in {
        b"- 1\n": "holds no run",
        b"model: 2026-13-45\n": "month must be in 1",
        b"\xff\xfe": "can't decode",
        b"grouping: 3\n": "holds fields",
    }.items():
        path.write_bytes(content)
        assert message in invoke("create", "small", "--file", str(path), "--group-size", "4", expect=1)


def test_a_section_that_is_left_empty_in_the_file_takes_an_option(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("grouping:\n")
    (plain,) = yaml.safe_load(invoke("create", "small", "--file", str(path), "--group-size", "4"))
    assert plain["grouping"] == {"group_size": 4}


def test_creating_an_existing_run_or_pausing_an_absent_one_is_refused() -> None:
    assert "already" in invoke("create", "main", expect=1)
    assert "no run 'other' in the settings; there are: main" in invoke("pause", "other", expect=1)
