"""`rollbus start` without a terminal says what it would do, and does nothing."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from rollbus.cli.root import rollbus
from rollbus.local.process.ports import find_free_port


def test_start_without_a_terminal_fails_and_names_missing_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rollbus.yaml").write_text(f"stack: {{kafka_port: {find_free_port()}}}\n")
    result = CliRunner().invoke(rollbus, ["start"])
    assert result.exit_code == 1, result.output
    last = result.output.splitlines()[-1]
    assert last == (
        "Error: missing: kafka, clickhouse, art-server, topics, worker, sink, trainer of main; "
        "`rollbus start --yes` starts it"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["rollbus.yaml"]


def test_the_command_that_starts_the_rest_names_the_settings_that_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(f"stack: {{kafka_port: {find_free_port()}}}\n")
    result = CliRunner().invoke(rollbus, ["--config", "mine.yaml", "start"])
    assert result.output.splitlines()[-1].endswith("; `rollbus --config mine.yaml start --yes` starts it")


def test_a_broker_elsewhere_that_does_not_answer_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    elsewhere = f"kafka: {{bootstrap_servers: '127.0.0.1:9'}}\nstack: {{kafka_port: {find_free_port()}}}\n"
    (tmp_path / "rollbus.yaml").write_text(elsewhere)
    result = CliRunner().invoke(rollbus, ["start", "--yes"])
    assert result.exit_code == 1
    assert "kafka: 127.0.0.1:9 does not answer; it is not of this machine's stack; start it" in result.output
