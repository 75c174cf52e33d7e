"""`rollbus resample run` says what is missing, and finds an agent in the folder where it is started."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from rollbus.cli.commands.streams.resample import logprob_mode_of
from rollbus.cli.root import rollbus
from rollbus.settings import Settings

ASKS = "kafka: {bootstrap_servers: '127.0.0.1:9'}\nruns: [{run_id: main, resample: {attempts_per_hour: 5}}]\n"
SILENT = "runs: [{run_id: main}]\n"


@pytest.mark.parametrize(
    ("settings", "agent", "message"),
    [
        (SILENT, "my_agent_of_a_test:again", "run 'main' asks for no attempts; give it `resample:"),
        (ASKS, "nobody_of_a_test:again", "agent: there is no module nobody_of_a_test in "),
        (ASKS, "my_agent_of_a_test:again", "Kafka at 127.0.0.1:9"),
    ],
)
def test_a_missing_setting_is_named(
    settings: str, agent: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rollbus.yaml").write_text(settings)
    (tmp_path / "my_agent_of_a_test.py").write_text("def again(attempt):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path.parent))  # puts the path back afterwards
    result = CliRunner().invoke(rollbus, ["-c", "rollbus.yaml", "resample", "run", agent])
    assert result.exit_code == 1
    assert message in result.output


@pytest.mark.parametrize(("model", "mode"), [("agent", "processed"), ("another", "unknown")])
def test_attempts_have_the_log_prob_mode_of_our_own_server(model: str, mode: str) -> None:
    settings = Settings.model_validate({"art_server": {"model": "agent", "logprobs_mode": "processed"}})
    assert logprob_mode_of(settings, model) == mode
