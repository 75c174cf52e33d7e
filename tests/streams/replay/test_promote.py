"""What is not promoted: functions that a worker does not have, and rewards over groups that nobody would judge."""

import pytest

from rollbus.schemas.config import CurriculumConfig, GroupingConfig, RewardConfig, RunConfig, ScoringConfig
from rollbus.schemas.control import ConfigApplied
from rollbus.schemas.errors import ConfigurationError
from rollbus.streams.replay.plan import OF_A_RUN, applied
from rollbus.streams.replay.promote_kafka import check_workers
from rollbus.streams.rewards.registry import BUILT_IN

PLAIN = RunConfig()
JUDGED = RunConfig(grouping=GroupingConfig(rewards=(RewardConfig(type="judge_relative", name="judge"),)))


def records_of(run: RunConfig) -> list[ConfigApplied]:
    """What a replay with another grouping or curriculum puts into effect."""
    return [applied(stage, run.run_id, run) for stage in OF_A_RUN]


@pytest.mark.parametrize("live", [(PLAIN,), (JUDGED.model_copy(update={"run_id": "other"}),), ()])
def test_rewards_over_groups_are_refused_where_lives_run_has_none_to_judge_them(live: tuple[RunConfig, ...]) -> None:
    with pytest.raises(ConfigurationError, match=r"run main .* closed groups .* settings and restart the workers"):
        check_workers(records_of(JUDGED), BUILT_IN, live)


def test_rewards_over_groups_are_promoted_where_lives_run_has_some() -> None:
    louder = RewardConfig(type="judge_relative", name="judge", weight=2.0)
    check_workers(records_of(RunConfig(grouping=GroupingConfig(rewards=(louder,)))), BUILT_IN, (JUDGED,))


def test_what_judges_no_groups_is_promoted_whatever_live_does() -> None:
    harness = RunConfig(curriculum=CurriculumConfig(mode="harness"))
    for live in (PLAIN, JUDGED):
        check_workers(records_of(harness), BUILT_IN, (live,))


def test_a_function_over_groups_that_a_worker_does_not_have_is_refused() -> None:
    own = RunConfig(grouping=GroupingConfig(rewards=(RewardConfig(type="mine.own", name="own"),)))
    with pytest.raises(ConfigurationError, match=r"no function 'mine\.own'"):
        check_workers(records_of(own), BUILT_IN, (JUDGED,))
    alone = RunConfig(grouping=GroupingConfig(rewards=(RewardConfig(type="feedback"),)))
    with pytest.raises(ConfigurationError, match="is over a trajectory"):
        check_workers(records_of(alone), BUILT_IN, (JUDGED,))


def test_a_function_over_trajectories_that_a_worker_does_not_have_is_refused() -> None:
    own = ScoringConfig(rewards=(RewardConfig(type="mine.own", name="own"),))
    with pytest.raises(ConfigurationError, match=r"no function 'mine\.own'"):
        check_workers([applied("scoring", None, own)], BUILT_IN, (PLAIN,))
