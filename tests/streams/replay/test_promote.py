"""What is not promoted: functions that a worker does not have, and rewards over groups that nobody would judge."""

import pytest

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.config import (
    BatchingConfig,
    CurriculumConfig,
    DeliveryConfig,
    FilterConfig,
    GroupingConfig,
    ResampleConfig,
    RewardConfig,
    RunConfig,
    ScoringConfig,
)
from rollbus.schemas.records.control import ConfigApplied
from rollbus.streams.replay.kafka.promote import check_workers, refuse_reverting
from rollbus.streams.replay.plan.plan import OF_A_RUN
from rollbus.streams.rewards.registry import BUILT_IN
from rollbus.streams.state.ticker import config_applied

PLAIN = RunConfig()
JUDGED_RUN = RunConfig(grouping=GroupingConfig(rewards=(RewardConfig(type="judge_relative", name="judge"),)))


def records_of(run: RunConfig) -> list[ConfigApplied]:
    """What a replay with another grouping or curriculum puts into effect."""
    return [config_applied(stage, run.run_id, run) for stage in OF_A_RUN]


@pytest.mark.parametrize("live", [(PLAIN,), (JUDGED_RUN.model_copy(update={"run_id": "other"}),), ()])
def test_a_group_reward_is_not_promoted_to_a_run_without_a_group_judge(live: tuple[RunConfig, ...]) -> None:
    with pytest.raises(ConfigurationError, match=r"run main .* closed groups .* settings and restart the workers"):
        check_workers(records_of(JUDGED_RUN), BUILT_IN, live)


def test_a_group_reward_is_promoted_to_a_run_with_a_group_judge() -> None:
    louder = RewardConfig(type="judge_relative", name="judge", weight=2.0)
    check_workers(records_of(RunConfig(grouping=GroupingConfig(rewards=(louder,)))), BUILT_IN, (JUDGED_RUN,))


def test_settings_without_a_group_judge_are_promoted_beside_any_worker() -> None:
    harness = RunConfig(curriculum=CurriculumConfig(mode="harness"))
    for live in (PLAIN, JUDGED_RUN):
        check_workers(records_of(harness), BUILT_IN, (live,))


def test_a_function_over_groups_that_a_worker_does_not_have_is_refused() -> None:
    own_config = RunConfig(grouping=GroupingConfig(rewards=(RewardConfig(type="mine.own", name="own"),)))
    with pytest.raises(ConfigurationError, match=r"no function 'mine\.own'"):
        check_workers(records_of(own_config), BUILT_IN, (JUDGED_RUN,))
    alone = RunConfig(grouping=GroupingConfig(rewards=(RewardConfig(type="feedback"),)))
    with pytest.raises(ConfigurationError, match="is over a trajectory"):
        check_workers(records_of(alone), BUILT_IN, (JUDGED_RUN,))


def test_a_function_over_trajectories_that_a_worker_does_not_have_is_refused() -> None:
    own_config = ScoringConfig(rewards=(RewardConfig(type="mine.own", name="own"),))
    with pytest.raises(ConfigurationError, match=r"no function 'mine\.own'"):
        check_workers([config_applied("scoring", None, own_config)], BUILT_IN, (PLAIN,))


FOURS = RunConfig(grouping=GroupingConfig(group_size=4))
HARNESS = RunConfig(curriculum=CurriculumConfig(mode="harness"))


def revert(new: RunConfig, *, live: RunConfig = PLAIN, began: RunConfig | None = PLAIN, now: RunConfig = PLAIN) -> None:
    """Promote a run into live, which has it as `live`, from a replay of settings where it was otherwise."""
    refuse_reverting(
        "b", records_of(new), {"main": live}, {} if began is None else {"main": began.config_hash()}, [now]
    )


@pytest.mark.parametrize("began", [PLAIN, None])
def test_a_promotion_does_not_revert_an_earlier_one_outside_the_settings(began: RunConfig | None) -> None:
    with pytest.raises(
        ConfigurationError, match=r"'b' would set grouping\.group_size from 4 to 8 in run main, .*other name"
    ):
        revert(HARNESS, live=FOURS, began=began)
    both = GroupingConfig(group_size=8, window_ms=60_000)
    with pytest.raises(ConfigurationError, match=r"set grouping\.group_size from 4 to 8 in run main"):
        revert(RunConfig(grouping=both), live=FOURS, began=began)


@pytest.mark.parametrize(
    ("live", "word"),
    [
        (RunConfig(grouping=GroupingConfig(credit="turn")), r"grouping\.credit from turn to trajectory"),
        (RunConfig(curriculum=CurriculumConfig(surprise_share=0.9)), r"curriculum\.surprise_share from 0\.9 to 0\.5"),
        (RunConfig(filter=FilterConfig(unfinished="all")), r"filter\.unfinished from all to rewarded_after"),
        (RunConfig(resample=ResampleConfig(attempts_per_hour=9)), r"resample\.attempts_per_hour from 9 to None"),
        (RunConfig(delivery=DeliveryConfig()), r"delivery\.min_episodes from 200 to None"),
    ],
)
@pytest.mark.parametrize("began", [PLAIN, None])
def test_a_promotion_does_not_revert_to_a_value_that_records_leave_out(
    live: RunConfig, word: str, began: RunConfig | None
) -> None:
    with pytest.raises(ConfigurationError, match=word):
        revert(RunConfig(grouping=GroupingConfig(window_ms=60_000)), live=live, began=began)


def test_a_promotion_does_not_revert_later_settings() -> None:
    with pytest.raises(ConfigurationError, match=r"grouping\.group_size from 4 to 8"):
        revert(HARNESS, live=FOURS, began=PLAIN, now=FOURS)
    batching = PLAIN.model_copy(update={"batching": BatchingConfig(groups_per_step=2)})
    with pytest.raises(ConfigurationError, match=r"batching\.groups_per_step from 2 to 16"):
        revert(HARNESS, live=batching, began=PLAIN, now=batching)


def test_a_replay_of_the_settings_in_effect_or_in_the_file_is_promoted() -> None:
    both = FOURS.model_copy(update={"curriculum": HARNESS.curriculum})
    revert(HARNESS)
    revert(HARNESS, began=None)
    revert(both, live=FOURS, began=FOURS, now=FOURS)
    revert(HARNESS, began=PLAIN, now=FOURS)  # the workers have not been started with these settings yet
    revert(both, live=FOURS)
    revert(FOURS, live=both, began=FOURS, now=FOURS)
    revert(PLAIN, live=FOURS)
    refuse_reverting("b", [config_applied("scoring", None, ScoringConfig())], {"main": FOURS}, {}, [PLAIN])
    refuse_reverting("b", records_of(HARNESS), {}, {}, [PLAIN])
