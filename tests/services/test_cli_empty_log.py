"""A new user's lists, on a broker where nothing has happened: they say so, and what would make something happen."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from rollbus.cli.root import rollbus

pytestmark = pytest.mark.services


def test_lists_of_an_empty_log_say_what_is_not_there_yet_and_what_makes_it(
    kafka: str, namespace: str, tmp_path: Path
) -> None:
    config = tmp_path / "rollbus.yaml"
    config.write_text(f"namespace: {namespace}\nkafka: {{bootstrap_servers: '{kafka}'}}\n")

    def say(*arguments: str) -> str:
        result = CliRunner().invoke(rollbus, ["-c", str(config), *arguments], env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
        return result.stdout

    say("topics", "create")
    expected = {
        ("replay", "list"): (f"no replay of '{namespace}' yet", "rollbus replay --from"),
        ("policy", "list"): ("model 'agent' has no version yet", "rollbus trainer run"),
        ("trainer", "steps"): ("run 'main' has closed no step yet", "rollbus trainer run"),
    }
    for command, (missing, remedy) in expected.items():
        told = say(*command)
        assert told.startswith(missing)
        assert remedy in told
        assert len(told.splitlines()) == 1
