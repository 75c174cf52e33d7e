"""Settings of delivery that contradict each other are refused at the start, all of them at once."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from rollbus.schemas.errors import ConfigurationError
from rollbus.settings import Settings
from rollbus.settings_file import load_settings

ESTIMATE = {"evaluation": "off-policy", "metric": "kl", "goal": "less"}
SERVE = {"serve": "after_evaluation"}
MODEL = {"base_model": "b"}
SERVICE = MODEL | {"tinker": {"url": "http://127.0.0.1:9", "base_model": "m"}}
SERVERLESS = {"type": "art-serverless", "project": "p", "name": "n", "base_model": "m"}
THUMBS = {"of": "component:thumbs", "goal": "more"}


def refusal(folder: Path, *, delivery: dict[str, Any] | None = None, **sections: Any) -> str:
    """Return what a process says that starts with these settings; empty if it starts."""
    document = {"runs": [{"run_id": "main", "delivery": delivery or {}}], "trainer": SERVE}
    path = folder / "rollbus.yaml"
    path.write_text(yaml.safe_dump(document | sections))
    try:
        load_settings(Settings, path, {})
    except ConfigurationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("delivery", "says"),
    [
        ({"steps": [0.5, 0.1]}, "steps must grow between 0 and 1, got 0.5, 0.1"),
        ({"steps": []}, "steps must grow between 0 and 1, got none"),
        ({"steps": [0.5, 1.0]}, "steps must grow between 0 and 1"),
        ({"reward_low": 2.0}, "reward_low 2.0 is not below reward_high 1.0"),
        ({"margin": 1.0}, "margin 1.0 is the whole range of the reward"),
        ({"max_episodes": 10}, "max_episodes 10 is reached before the last of 3 steps"),
        ({"metrics": [{"of": "failed", "goal": "less"}] * 2}, "metrics need different names, got failed, failed"),
        ({"metrics": [{"of": "component:", "goal": "more"}]}, "metrics[0].of: String should match pattern"),
        ({"metrics": [{"of": "thumbs", "goal": "more"}]}, "metrics[0].of: String should match pattern"),
        ({"metrics": [THUMBS]}, "metric component:thumbs: `scoring: rewards:` has no such component"),
        ({"metrics": [{"of": "tokens", "goal": "less", "low": 5, "high": 5}]}, "metric tokens: low 5.0 is not below"),
        ({"metrics": [{"of": "failed", "goal": "less", "tolerance": 1}]}, "tolerance 1.0 is the whole range"),
        ({"checks": [ESTIMATE, ESTIMATE]}, "checks need different names, got off-policy:kl, off-policy:kl"),
        (
            {"checks": [ESTIMATE | {"limit": 1, "tolerance": 0.1}]},
            "`limit` compares with a number, and `tolerance` with",
        ),
        ({"checks": [ESTIMATE | {"evaluation": "held-out"}]}, "nothing is called held-out, and it would never come"),
        (
            {"metrics": [{"of": "failed", "goal": "less", "min_episodes": 9}], "max_episodes": 20, "min_episodes": 1},
            "min_episodes 9 are not reached in max_episodes",
        ),
    ],
)
def test_contradictory_settings_of_a_delivery_are_refused(delivery: dict[str, Any], says: str, tmp_path: Path) -> None:
    assert says in refusal(tmp_path, delivery=delivery)


def test_checks_of_other_evaluations_have_other_names_wherever_a_colon_is(tmp_path: Path) -> None:
    checks = [{"evaluation": "off-policy", "metric": "b:c"}, {"evaluation": "off-policy:b", "metric": "c"}]
    validation = {"name": "off-policy:b", "agent": "m:f", "episodes": 1}
    assert refusal(tmp_path, delivery={"checks": checks}, trainer={**SERVE, "validation": validation}) == ""


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"trainer": {}}, "`trainer: serve: at_once` serves every version to all at once"),
        ({"trainer": SERVE | {"backend": {"type": "memory"}}}, "backend memory gives no version a share"),
        (
            {"trainer": SERVE | {"backend": {"type": "art-local"}}, "art_server": MODEL},
            "backend art-local gives no version a share",
        ),
        (
            {"trainer": SERVE | {"backend": {"type": "tinker"}}, "art_server": SERVICE},
            "backend tinker gives no version a share",
        ),
        ({"trainer": SERVE | {"backend": SERVERLESS}}, "backend art-serverless gives no version a share"),
        ({"art_server": {"art": {}}}, "`art_server: art:` serves one version"),
    ],
)
def test_other_settings_that_would_serve_past_a_delivery_are_refused(
    sections: dict[str, Any], says: str, tmp_path: Path
) -> None:
    assert says in refusal(tmp_path, **sections)
    without = {**sections, "runs": [{"run_id": "a"}]}
    assert says not in refusal(tmp_path, **without)


def test_a_rule_that_serves_a_version_to_all_is_refused(tmp_path: Path) -> None:
    trainer = SERVE | {
        "promote_if": {"evaluation": "held-out", "metric": "reward"},
        "validation": {"agent": "m:f", "episodes": 5},
    }
    message = refusal(tmp_path, trainer=trainer)
    assert "`trainer: promote_if:` serves a version to all at once" in message, message


def test_all_contradictions_are_named_at_once(tmp_path: Path) -> None:
    delivery = {"steps": [0.5, 0.5], "reward_low": 3, "metrics": [THUMBS, {"of": "failed", "goal": "less"}]}
    message = refusal(tmp_path, delivery=delivery, trainer={"backend": {"type": "memory"}})
    for mistake in ("steps must grow", "reward_low 3.0", "no such component", "serve: at_once", "backend memory"):
        assert mistake in message, message


def test_settings_that_agree_are_accepted(tmp_path: Path) -> None:
    rewards = [{"name": "reward"}, {"name": "thumbs", "weight": 0}]
    assert refusal(tmp_path, delivery={"metrics": [THUMBS]}, scoring={"rewards": rewards}) == ""
