"""What a saved question is asked about when its parameters are left out."""

import pytest

from rollbus.cli.commands.consumers.sql import add_defaults
from rollbus.consumers.clickhouse.questions.saved_questions import load_query
from rollbus.schemas.errors import ConfigurationError
from rollbus.settings import Settings

SEVERAL = Settings.model_validate(
    {"runs": [{"run_id": "small", "model": "mouse"}, {"run_id": "large", "model": "bear"}]}
)


def test_namespace_and_the_only_run_are_those_of_the_settings() -> None:
    settings = Settings.model_validate({"namespace": "shop.", "runs": [{"run_id": "small"}]})
    assert add_defaults(settings, load_query("fates"), {}) == {"namespace": "shop.", "run": "small"}
    assert add_defaults(settings, load_query("dead_letters_by_class"), {}) == {"namespace": "shop."}


def test_with_several_runs_a_question_about_one_asks_which() -> None:
    with pytest.raises(ConfigurationError, match=r"several runs \(small, large\); say which with --run"):
        add_defaults(SEVERAL, load_query("fates"), {})
    assert add_defaults(SEVERAL, load_query("fates"), {"run": "large"})["run"] == "large"


def test_a_question_about_all_runs_stays_one() -> None:
    assert "run" not in add_defaults(SEVERAL, load_query("drops_by_reason"), {})


def test_a_question_about_one_of_several_models_asks_which() -> None:
    question = load_query("reward_by_policy_version")
    with pytest.raises(ConfigurationError, match=r"several models \(bear, mouse\); say which with --run"):
        add_defaults(SEVERAL, question, {})
    assert add_defaults(SEVERAL, question, {}, "large") == {"namespace": "rollbus.", "model": "bear"}
    assert add_defaults(SEVERAL, question, {"model": ""})["model"] == ""
    assert add_defaults(SEVERAL, load_query("fates"), {}, "large")["run"] == "large"
