"""What `rollbus replay` hands to the replay itself, what it refuses before it reads, and what it says of none."""

from typing import Any

import pytest

from rollbus.cli.replay_plan import plan_of, replay_of
from rollbus.cli.replay_shown import show_replays
from rollbus.schemas.config import GroupingConfig, RewardConfig, RunConfig
from rollbus.schemas.errors import ConfigurationError
from rollbus.settings import Settings
from rollbus.streams.replay.plan import ReplayPlan
from rollbus.streams.rewards.endpoint import Endpoint


def plan_for(settings: Settings, **changes: Any) -> ReplayPlan:
    """What the options say, all but these left out."""
    options: dict[str, Any] = {
        "start": "earliest",
        "end": "latest",
        "stages": (),
        "name": "again",
        "rewards": "recorded",
        **dict.fromkeys(("reward", "grouping", "curriculum")),
        **dict.fromkeys(("score_anew", "allow_missing", "dry_run"), False),
    }
    return plan_of(settings, **(options | changes))


@pytest.mark.parametrize("base_url", ["http://judge/v1", None])
def test_a_replay_may_ask_the_judge_that_is_configured(base_url: str | None) -> None:
    settings = Settings.model_validate({"judge": {"base_url": base_url, "model": "wise"}})
    plan = plan_for(settings, score_anew=True)
    assert isinstance(replay_of(settings, plan, None).ask, Endpoint) is (base_url is not None)


@pytest.mark.parametrize("stages", [("scoring",), ("grouping", "curriculum"), ("alias",)])
def test_rewards_of_the_end_are_refused_where_no_episode_is_assembled(stages: tuple[str, ...]) -> None:
    settings = Settings.model_validate({})
    with pytest.raises(ConfigurationError, match=r"--rewards end .* leave --stage out, or name assembly"):
        plan_for(settings, rewards="end", stages=stages)
    assert plan_for(settings, stages=stages).stages[0] == stages[0]
    for whole in ((), ("assembly",)):
        assert plan_for(settings, rewards="end", stages=whole).rewards == "end"


async def test_groups_are_not_judged_anew_where_the_replay_writes_no_trajectories_to_ask_about() -> None:
    judged = RunConfig(grouping=GroupingConfig(rewards=(RewardConfig(type="judge_relative", name="judge"),)))
    settings = Settings(runs=(judged,))
    for stages in ((), ("assembly", "scoring", "grouping", "curriculum")):
        plan = plan_for(settings, score_anew=True, dry_run=True, stages=stages)
        with pytest.raises(ConfigurationError, match=r"over groups .* leave out --dry-run or --score-anew"):
            await replay_of(settings, plan, None).run(dry_run=True)


def test_that_there_is_no_replay_is_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    show_replays([], "mine.")
    assert "no replay of 'mine.' yet: `rollbus replay --from" in capsys.readouterr().out
