"""What `rollbus replay` hands to the replay itself."""

from typing import Any

import pytest

from rollbus.cli.replay_plan import plan_of, replay_of
from rollbus.settings import Settings
from rollbus.streams.rewards.endpoint import Endpoint

CHOSEN: dict[str, Any] = {"start": "earliest", "end": "latest", "stages": (), "rewards": "recorded"}


@pytest.mark.parametrize("base_url", ["http://judge/v1", None])
def test_a_replay_may_ask_the_judge_that_is_configured(base_url: str | None) -> None:
    settings = Settings.model_validate({"judge": {"base_url": base_url, "model": "wise"}})
    plan = plan_of(
        settings,
        **CHOSEN,
        reward=None,
        grouping=None,
        curriculum=None,
        score_anew=True,
        name="again",
        allow_missing=False,
        dry_run=True,
    )
    assert isinstance(replay_of(settings, plan, None).ask, Endpoint) is (base_url is not None)
