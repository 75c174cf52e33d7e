"""What live's scores answer in a replay: the question that was asked under the configuration they name, no other."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.codec import encode
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.schemas.records.config import AssemblyConfig, GroupingConfig, RewardConfig, RunConfig, ScoringConfig
from rollbus.schemas.records.trajectories import Location, Reward, RewardRevised, Score, Trajectory, TurnReward
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.replay.decide.scores import (
    HeaderScoring,
    OtherConfigurationError,
    RecordedScoring,
    as_asked,
    refuse_other_questions,
    without_model_calls,
)
from rollbus.streams.replay.kafka.live_topics import RecordedScores
from rollbus.streams.replay.kafka.run import Replay
from rollbus.streams.replay.plan.plan import CHAIN, ReplayPlan
from rollbus.streams.replay.plan.range import Bound
from rollbus.streams.rewards.contract import RewardContext, RewardFunction, TurnValues
from rollbus.streams.rewards.registry import BUILT_IN, group_reward_version
from rollbus.streams.stages.scoring.answers import ComponentAnswer
from rollbus.streams.stages.scoring.stage import ScoringStage
from rollbus.streams.state.stage import Incoming
from tests.builders import START_MS, make_config, make_group, make_score, make_tick, make_trajectory
from tests.stepper import Stepper
from tests.streams.replay.memory import ListSource, Raw


def judged_by(rubric: str, **fields: Any) -> ScoringConfig:
    judge = RewardConfig(type="judge", name="quality", options={"rubric": rubric}, **fields)
    return ScoringConfig(rewards=(judge,))


A, B = judged_by("Is it right?"), judged_by("Is it kind?")
PLACE = Location(topic="trajectories", partition=0, offset=0)


async def remembered_answer(asked_config: ScoringConfig, given: Score | None, *live_configs: ScoringConfig) -> Any:
    """What a replay under `asked_config` takes for the judge's answer, with these configurations of live at hand."""

    async def find(hint: str, trajectory_id: str, revision: int, at_ms: int) -> Score | None:
        return given

    live = {config.config_hash(): config for config in live_configs}
    registry = without_model_calls(BUILT_IN, asked_config.rewards, live, find)
    call: Any = registry["judge"].call
    return await call(make_trajectory(), RewardContext("quality", asked_config.rewards[0].options, None))


def scored_under(config: ScoringConfig) -> Score:
    return make_score(value=0.5, components={"quality": 0.5}, config_hash=config.config_hash())


async def test_a_judge_s_answer_is_taken_from_a_score_that_asked_the_same() -> None:
    assert await remembered_answer(B, scored_under(B), B) == 0.5


async def test_a_judge_s_answer_to_another_question_is_not_taken() -> None:
    with pytest.raises(LookupError, match=r"another question.*--rescore"):
        await remembered_answer(B, scored_under(A), A, B)


async def test_a_score_of_an_unknown_configuration_gives_no_answer() -> None:
    with pytest.raises(LookupError, match=rf"{A.config_hash()}.*--rescore"):
        await remembered_answer(B, scored_under(A), B)


async def test_weights_and_timeouts_do_not_change_a_question() -> None:
    before = judged_by("Is it kind?", weight=3.0)
    assert await remembered_answer(B, scored_under(before), before) == 0.5


async def test_a_missing_score_or_component_is_not_an_answer() -> None:
    for score in (None, make_score(config_hash=B.config_hash())):
        with pytest.raises(LookupError, match="--rescore"):
            await remembered_answer(B, score, B)


async def test_a_question_in_no_live_configuration_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigurationError, match="--rescore"):
        await remembered_answer(B, None, A)


async def test_live_s_answer_is_waited_for_however_far_live_is_behind() -> None:
    """The judge's answer is not a call of its own: a lag, or a slow read of the log, must not become a failed score."""
    hurried, trajectory = judged_by("Is it kind?", timeout_s=0.01), make_trajectory()

    async def find(hint: str, trajectory_id: str, revision: int, at_ms: int) -> Score | None:
        await asyncio.sleep(0.05)
        return scored_under(hurried)

    registry = without_model_calls(BUILT_IN, hurried.rewards, {hurried.config_hash(): hurried}, find)
    stage = HeaderScoring(hurried, keep_ms=0, registry=registry, retry_s=0)
    (answers,) = await stage.answer(stage.new_state(), [Incoming(trajectory, "", PLACE, b"")])
    assert answers == {"quality": ComponentAnswer(0.5)}


# Groups


def run_of(rubric: str, **fields: Any) -> RunConfig:
    ranking = RewardConfig(type="judge_relative", name="ranking", options={"rubric": rubric}, **fields)
    return RunConfig(grouping=GroupingConfig(rewards=(ranking,)))


RANKED_RUN, RANKED_OTHERWISE = run_of("Which is right?"), run_of("Which is kind?")


def judged_under(run: RunConfig, version: str = "scored") -> Any:
    """A group that live judged, of a score's version."""
    group = make_group("g1")
    judged = group_reward_version(BUILT_IN, run.grouping.rewards, version)
    return replace(group, reward_version=judged, config_hash=run.config_hash())


def group_found(asked_run: RunConfig, judged: Any, *live: RunConfig, version: str = "scored") -> Any:
    """What a replay under `asked_run` takes for a group's verdict."""
    closed = replace(judged, reward_version=version)
    return as_asked(judged, closed, asked_run.grouping.rewards, {run.config_hash(): run for run in live}, BUILT_IN)


def test_a_group_s_verdict_is_taken_where_live_asked_the_same() -> None:
    judged = judged_under(RANKED_RUN)
    assert group_found(RANKED_RUN, judged, RANKED_RUN, version="scored otherwise") is judged
    assert group_found(run_of("Which is right?", weight=0.5), judged, RANKED_RUN) is judged
    assert group_found(RANKED_RUN, judged) is judged  # its reward version says so


def test_a_group_s_verdict_on_another_question_is_not_taken() -> None:
    drop = group_found(RANKED_OTHERWISE, judged_under(RANKED_RUN), RANKED_RUN, RANKED_OTHERWISE)
    assert (drop.reason, drop.unit_id) == ("score_failed", "g1")
    assert "--rescore" in drop.detail
    assert "--rescore" in group_found(RANKED_OTHERWISE, judged_under(RANKED_RUN), RANKED_OTHERWISE).detail


def test_a_replay_with_other_group_questions_than_live_is_refused() -> None:
    refuse_other_questions([RANKED_RUN], [RANKED_RUN])
    refuse_other_questions([RANKED_RUN], [RunConfig()])
    for live in (RANKED_OTHERWISE, RunConfig()):
        with pytest.raises(ConfigurationError, match=r"ranking .* run main .*--rescore"):
            refuse_other_questions([live], [RANKED_RUN])


# Refused before anything is read or written


async def start_replay(again: RunConfig, scores: Any = "recorded", **options: Any) -> None:
    """Begin a replay, with groups as `again` has them, of a run that is configured as RANKED."""
    plan = ReplayPlan("r", Bound(), Bound(), CHAIN[2:], AssemblyConfig(), ScoringConfig(), (RANKED_RUN,), scores=scores,
                      new_grouping=again.grouping)  # fmt: skip
    await Replay(StreamSettings(), plan, BUILT_IN, **options).run(dry_run=True)


async def test_a_replay_with_other_group_questions_ends_before_it_reads() -> None:
    with pytest.raises(ConfigurationError, match=r"ranking .*--rescore"):
        await start_replay(RANKED_OTHERWISE)


async def test_a_shadow_of_judged_groups_needs_its_own_judge() -> None:
    with pytest.raises(ConfigurationError, match=r"run main .*--rescore"):
        await start_replay(RANKED_RUN, follow=asyncio.Event())


async def test_a_replay_needs_only_the_functions_that_it_scores_with() -> None:
    """Without a broker here, to begin is to find none."""
    elsewhere = ScoringConfig(rewards=(RewardConfig(type="of_another_machine"),))
    plan = ReplayPlan("r", Bound(), Bound(), CHAIN, AssemblyConfig(), elsewhere, (RunConfig(),))
    nowhere = StreamSettings(kafka=KafkaConnection(bootstrap_servers="127.0.0.1:1"))
    with pytest.raises(ConfigurationError, match="of_another_machine"):
        await Replay(nowhere, plan, BUILT_IN).run(dry_run=True)
    for stages in (CHAIN[:1], CHAIN[2:], CHAIN[4:]):
        with pytest.raises(UnavailableError):
            await Replay(nowhere, replace(plan, stages=stages), BUILT_IN).run(dry_run=True)


# Recorded scores


ONCE, TWICE = ScoringConfig(), ScoringConfig(rewards=(RewardConfig(weight=2.0),))


def scored_again(
    records: Sequence[Any], given: Mapping[str, ScoringConfig], *known_configs: ScoringConfig
) -> list[Any]:
    """The scores that a replay makes of records, where live scored each episode under the configuration given."""

    async def find(hint: str, trajectory_id: str, revision: int, at_ms: int) -> Score | None:
        config = given[trajectory_id]
        return make_score(trajectory_id, components={"reward": 1.0}, config_hash=config.config_hash())

    configs = {config.config_hash(): config for config in known_configs}
    stage = RecordedScoring(ScoringStage(ONCE, keep_ms=0), find, configs)
    return [(out.record.value, out.record.config_hash) for out in Stepper(stage).outputs(records)]


def test_a_score_keeps_its_configuration_on_either_side_of_a_change() -> None:
    """Live's assembly lags its ticks, so a replay may place a trajectory on the other side of a change."""
    early, late = make_trajectory("early"), make_trajectory("late")
    given = {early.trajectory_id: TWICE, late.trajectory_id: ONCE}
    scored = scored_again([early, make_config("scoring", TWICE), late], given, TWICE, ONCE)
    assert scored == [(2.0, TWICE.config_hash()), (1.0, ONCE.config_hash())]


async def test_a_configuration_that_live_refused_ends_no_replay() -> None:
    """It is a dead letter, in live and in the replay; whatever stands behind it was scored under the one before."""
    refused = replace(make_config("scoring", TWICE), content='{"rewards": 5}')

    async def find(hint: str, trajectory_id: str, revision: int, at_ms: int) -> Score | None:
        return make_score(trajectory_id, components={"reward": 1.0}, config_hash=ONCE.config_hash())

    stage = RecordedScoring(ScoringStage(ONCE, keep_ms=0), find, {})
    incoming = [Incoming(record, "", PLACE, encode(record)) for record in (refused, make_trajectory("late"))]
    assert (await stage.answer(stage.new_state(), incoming))[1] == {"reward": ComponentAnswer(1.0)}


def test_a_replay_with_feedback_end_computes_only_feedback_again() -> None:
    """Live's first score knows only of the feedback that had come by then."""
    config = ScoringConfig(rewards=(RewardConfig(), *B.rewards))
    trajectory = make_trajectory(reward=1.0)
    excluded = RewardRevised(trajectory_id=trajectory.trajectory_id, episode_id="e1", revision=1, excluded=True,
                             group_hint=trajectory.group_hint, revised_at_ms=0)  # fmt: skip

    async def find(hint: str, trajectory_id: str, revision: int, at_ms: int) -> Score | None:
        if revision:
            return None  # with the rewards of the end there is no revision of the same number
        return make_score(trajectory_id, None, components={"quality": 0.5}, config_hash=config.config_hash())

    stage = RecordedScoring(ScoringStage(config, keep_ms=0), find, {}, compute_feedback=True)
    scores = [out.record for out in Stepper(stage).outputs([trajectory, excluded])]
    assert [(score.value, score.excluded) for score in scores] == [(1.5, False), (1.5, True)]


def test_a_replay_searches_for_no_revision_of_an_unknown_trajectory() -> None:
    """The revision leaves a drop, whatever live has made of it; a search for an absent score reads to the end."""
    known_trajectory, unknown_trajectory = make_trajectory("known"), make_trajectory("unknown")
    make_revision = [
        RewardRevised(
            trajectory_id=trajectory.trajectory_id, episode_id=trajectory.episode_id,
            group_hint=trajectory.group_hint, revision=1, revised_at_ms=0,
        )
        for trajectory in (unknown_trajectory, known_trajectory)
    ]  # fmt: skip
    asked_revisions = list[tuple[str, int]]()

    async def find(hint: str, trajectory_id: str, revision: int, at_ms: int) -> Score | None:
        asked_revisions.append((trajectory_id, revision))
        return make_score(trajectory_id, revision=revision, config_hash=ONCE.config_hash())

    Stepper(RecordedScoring(ScoringStage(ONCE, keep_ms=0), find, {})).outputs(
        [make_revision[0], known_trajectory, make_revision[1]]
    )
    assert asked_revisions == [(known_trajectory.trajectory_id, 0), (known_trajectory.trajectory_id, 1)]


def test_a_score_under_an_unrecorded_configuration_is_not_taken() -> None:
    trajectory = make_trajectory()
    with pytest.raises(OtherConfigurationError, match=TWICE.config_hash()):
        scored_again([trajectory], {trajectory.trajectory_id: TWICE}, ONCE)


# Revisions


def fails(trajectory: Trajectory, context: RewardContext) -> float:
    raise ValueError("it always fails")


def is_unclear(trajectory: Trajectory, context: RewardContext) -> TurnValues:
    turn = TurnReward(turn_event_id=trajectory.turns[0].event_id, component="unclear")
    return TurnValues((turn,), None)


FAILING = {
    **BUILT_IN,
    "failing": RewardFunction(fails, quick=True),
    "unclear": RewardFunction(is_unclear, quick=True),
}
WITH_FAILURES = [
    ScoringConfig(),
    ScoringConfig(rewards=(RewardConfig(), RewardConfig(type="failing", name="broken", weight=0.0))),
    ScoringConfig(rewards=(RewardConfig(type="failing", name="broken", weight=0.0), RewardConfig())),
    ScoringConfig(rewards=(RewardConfig(), RewardConfig(type="failing", name="broken"))),
]
REVISIONS = st.lists(st.tuples(st.none() | st.sampled_from([0.0, 1.0, float("1e308")]), st.booleans()), max_size=4)


def scores_again(config: ScoringConfig, records: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """What live makes of records, and what a replay makes of live's scores."""
    stage = ScoringStage(config, keep_ms=0, registry=FAILING)
    live = [out.record for out in Stepper(stage).outputs(records)]
    by_revision = {(score.trajectory_id, score.revision): score for score in live if isinstance(score, Score)}

    async def find(hint: str, trajectory_id: str, revision: int, at_ms: int) -> Score | None:
        return by_revision[trajectory_id, revision]

    replay = [out.record for out in Stepper(RecordedScoring(stage, find, {})).outputs(records)]
    return live, replay


def make_revision(
    trajectory: Trajectory, revision: int, value: float | None, *, excluded: bool = False, revised_at_ms: int = 0
) -> RewardRevised:
    return RewardRevised(trajectory_id=trajectory.trajectory_id, episode_id=trajectory.episode_id, revision=revision,
                         rewards=make_trajectory(reward=value).rewards, group_hint=trajectory.group_hint,
                         excluded=excluded, revised_at_ms=revised_at_ms)  # fmt: skip


def test_an_episode_that_comes_again_after_the_horizon_is_scored_again_as_live_did() -> None:
    first, again = (make_trajectory(reward=value, first_seen_ms=START_MS + at_ms, assembled_at_ms=START_MS + at_ms)
                    for value, at_ms in ((1.0, 0), (0.0, 20_000)))  # fmt: skip
    records = [make_tick(0), first, make_revision(first, 1, 0.5), make_tick(20), again,
               make_revision(again, 1, 0.25, revised_at_ms=START_MS + 20_000)]  # fmt: skip
    stage = ScoringStage(ScoringConfig(), keep_ms=10_000)
    live = Stepper(stage).feed(*records)
    assert [score.value for score in live] == [1.0, 0.5, 0.0, 0.25]
    scores = RecordedScores([ListSource(0, [Raw(i, b"k", encode(score)) for i, score in enumerate(live)])])
    replay = Stepper(RecordedScoring(stage, scores.find, {})).feed(*records)
    assert list(map(encode, replay)) == list(map(encode, live))


def test_a_retraction_is_not_taken_back_by_a_replay() -> None:
    trajectory = make_trajectory(reward=1.0)
    _, replay = scores_again(ScoringConfig(), [trajectory, make_revision(trajectory, 1, None)])
    assert [(score.outcome, score.value) for score in replay] == [("scored", 1.0), ("missing", None)]


def test_a_component_without_a_value_keeps_its_place_among_the_turns_in_a_replay() -> None:
    report = Reward(event_id="r", name="reward", value=1.0, turn_event_id=make_trajectory().turns[0].event_id)
    config = ScoringConfig(rewards=(RewardConfig(type="unclear", name="unclear", weight=0.0), RewardConfig()))
    live, replay = scores_again(config, [make_trajectory(reward=None, rewards=(report,))])
    assert [turn.component for turn in live[0].turn_rewards] == ["unclear", "reward"]
    assert list(map(encode, replay)) == list(map(encode, live))


def test_what_was_said_of_turns_stays_in_a_failed_score_of_a_replay() -> None:
    """A score has one error and does not say whose: another component without a value may be taken for it."""
    config = ScoringConfig(
        rewards=(RewardConfig(type="unclear", name="unclear"), RewardConfig(type="failing", name="broken"))
    )
    live, replay = scores_again(config, [make_trajectory()])
    assert [turn.component for turn in live[0].turn_rewards] == ["unclear"]
    assert list(map(encode, replay)) == list(map(encode, live))


@given(config=st.sampled_from(WITH_FAILURES), first=st.none() | st.floats(-1, 1), revisions=REVISIONS)
def test_a_replay_of_any_revisions_gives_live_s_scores(
    config: ScoringConfig, first: float | None, revisions: Any
) -> None:
    trajectory = make_trajectory(reward=first)
    records = [make_revision(trajectory, number, value, excluded=excluded)
               for number, (value, excluded) in enumerate(revisions, start=1)]  # fmt: skip
    live, replay = scores_again(config, [trajectory, *records])
    assert replay == live
