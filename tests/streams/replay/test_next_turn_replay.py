"""A replay reads what a judge said of a reply, asks nobody again, and answers with other rules where those changed."""

from collections.abc import Sequence
from typing import Any

import pytest

from rollbus.schemas.records.config import RewardConfig, ScoringConfig
from rollbus.schemas.records.trajectories import RewardRevised, Score, Trajectory
from rollbus.streams.replay.decide.scores import RecordedScoring, without_model_calls
from rollbus.streams.rewards.registry import BUILT_IN
from rollbus.streams.stages.scoring.stage import ScoringStage
from tests.stepper import Stepper
from tests.streams.stages.test_next_turn import Flow, Judge, one_turn_episode, spoken

JUDGE_REWARD = RewardConfig(type="next_turn_judge", name="judge")
WRITES_HINTS = JUDGE_REWARD.model_copy(update={"options": {"hint": "judge"}})
RULES = RewardConfig(type="next_turn", name="next")


class Live:
    """What was assembled and scored: two turns of one conversation, the second a reply to the first."""

    def __init__(self, *rewards: RewardConfig, judge: Judge | None = None) -> None:
        self.config, self.judge = ScoringConfig(rewards=rewards), judge or Judge()
        flow = Flow(rewards, self.judge)
        self.trajectories: list[Trajectory | RewardRevised] = []
        self.scores: list[Score] = []
        for declared, episode in (
            (spoken("c1", "e1", "where is my parcel"), one_turn_episode("e1", "where is my parcel", "BILLING")),
            (spoken("c1", "e2", "where is my parcel?"), one_turn_episode("e2", "where is my parcel?", "DELIVERY")),
        ):
            trajectories = flow.assembly.feed(*flow.alias.feed(declared), *episode)
            self.trajectories += trajectories
            self.scores += flow.scoring.feed(*trajectories)

    async def find(self, hint: str, trajectory_id: str, revision: int, at_ms: int) -> Score | None:
        matching_scores = (
            score for score in self.scores if (score.trajectory_id, score.revision) == (trajectory_id, revision)
        )
        return next(matching_scores, None)


def replay_scores(stage: Any, trajectories: Sequence[Any]) -> list[Any]:
    return Stepper(stage).feed(*trajectories)


def without_places(scores: Sequence[Score]) -> list[Any]:
    return [(score.trajectory_id, score.revision, score.value, score.turn_rewards) for score in scores]


@pytest.mark.parametrize("rewards", [(JUDGE_REWARD,), (RULES,), (JUDGE_REWARD, RULES)])
def test_recorded_scores_give_the_same_scores_again(rewards: tuple[RewardConfig, ...]) -> None:
    live = Live(*rewards)
    calls = len(live.judge.calls)
    stage = RecordedScoring(ScoringStage(live.config, keep_ms=100_000), live.find, {})
    assert without_places(replay_scores(stage, live.trajectories)) == without_places(live.scores)
    assert len(live.judge.calls) == calls


def test_a_replay_reads_a_judges_hints_and_asks_for_none() -> None:
    live = Live(WRITES_HINTS, judge=Judge("{code} hint Name the parcel team.\n{code} bad 0.9"))
    hints = [turn.hint for score in live.scores for turn in score.turn_rewards]
    assert hints == ["Name the parcel team."]
    calls, configs = len(live.judge.calls), {live.config.config_hash(): live.config}
    recorded_scoring = RecordedScoring(ScoringStage(live.config, keep_ms=100_000), live.find, {})
    registry = without_model_calls(BUILT_IN, (WRITES_HINTS,), configs, live.find)
    remembering = ScoringStage(live.config, keep_ms=100_000, registry=registry, retry_s=0)
    for stage in (recorded_scoring, remembering):
        assert without_places(replay_scores(stage, live.trajectories)) == without_places(live.scores)
    assert len(live.judge.calls) == calls


def test_other_rules_are_computed_beside_the_judges_answers() -> None:
    live = Live(JUDGE_REWARD, RULES)
    changed = RULES.model_copy(update={"options": {"repetition": -0.5}})
    configs = {live.config.config_hash(): live.config}
    registry = without_model_calls(BUILT_IN, (JUDGE_REWARD, changed), configs, live.find)
    stage = ScoringStage(ScoringConfig(rewards=(JUDGE_REWARD, changed)), keep_ms=100_000, registry=registry, retry_s=0)
    revised = next(score for score in replay_scores(stage, live.trajectories) if score.revision)
    assert revised.components == {"judge": 1.0, "next": -0.5}
    assert [turn.signal for turn in revised.turn_rewards] == ["judge", "repetition"]
