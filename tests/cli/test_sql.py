"""What a saved question is asked about when its parameters are left out."""

from rollbus.cli.commands.consumers.sql import find_defaults
from rollbus.settings import Settings


def test_namespace_and_the_only_run_are_those_of_the_settings() -> None:
    settings = Settings.model_validate({"namespace": "shop.", "runs": [{"run_id": "small"}]})
    assert find_defaults(settings) == {"namespace": "shop.", "run": "small"}


def test_with_several_runs_the_question_keeps_its_own() -> None:
    settings = Settings.model_validate({"runs": [{"run_id": "small"}, {"run_id": "large"}]})
    assert find_defaults(settings) == {"namespace": "rollbus."}
