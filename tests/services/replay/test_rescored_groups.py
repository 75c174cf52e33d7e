"""What a judge says in a replay, on a real broker.

For rescored groups the judge gets the trajectories that the replay has just written. For a trajectory that it judged in
live, its recorded answer counts.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rollbus.schemas.codec import encode
from rollbus.schemas.records.config import RewardConfig, RunConfig, ScoringConfig
from rollbus.schemas.records.groups import Group
from rollbus.schemas.records.trajectories import Score, Trajectory
from rollbus.schemas.topics import SCORES, TRAJECTORIES
from rollbus.settings import Settings
from rollbus.streams.operate.forget import RootedEpisode, exclusions
from rollbus.streams.operate.forget_on_log import write_exclusions
from rollbus.streams.replay.kafka.run import Replay
from rollbus.streams.rewards.contract import RewardContext, RewardFunction
from rollbus.streams.rewards.registry import BUILT_IN
from tests.builders import make_config, make_score, make_tick, make_trajectory
from tests.services.replay.live import records
from tests.services.replay.log import ROUNDS, name_of, replay_of, send_everywhere
from tests.services.streams.fixtures import send, send_to_all

pytestmark = pytest.mark.services


def turns(group: Sequence[Trajectory], context: RewardContext) -> list[float | None]:
    """What stands in no score."""
    return [float(len(member.turns)) for member in group]


REGISTRY = {**BUILT_IN, "turns": RewardFunction(turns, per="group")}


def judging(settings: Settings, name: str, **changes: Any) -> Replay:
    """A replay whose first run has its groups judged, by asking."""
    run = settings.runs[0]
    grouping = run.grouping.model_copy(update={"rewards": (RewardConfig(type="turns", name="turns"),)})
    runs: tuple[RunConfig, ...] = (run.model_copy(update={"grouping": grouping}),)
    return replace(replay_of(settings, name, runs=runs, scores="rescored", **changes), registry=REGISTRY)


async def test_a_rescored_group_is_judged_by_the_trajectories_of_the_replay(shared_log: Settings) -> None:
    digests_by_processes: dict[int, Any] = {}
    for processes in (1, 2):
        replay = replace(judging(shared_log, name_of(shared_log, "rescored", str(processes))), processes=processes)
        manifest = await replay.run()
        written = await records(replay.replay_settings, "trajectories")
        groups = [record for record in await records(replay.replay_settings, "run-log") if isinstance(record, Group)]
        lengths = {
            written_record.trajectory_id: float(len(written_record.turns))
            for written_record in written
            if isinstance(written_record, Trajectory)
        }
        members = [member for group in groups for member in group.members]
        assert {member.components["turns"] for member in members} == {1.0, 2.0, 3.0}
        assert all(member.components["turns"] == lengths[member.trajectory_id] for member in members)
        digests_by_processes[processes] = manifest.digests
    assert digests_by_processes[1] == digests_by_processes[2]


async def test_a_dry_run_judges_trajectories_in_the_namespace_of_its_scores(shared_log: Settings) -> None:
    first = judging(shared_log, name_of(shared_log, "first"))
    digests = {digest.stage: digest.digest for digest in (await first.run()).digests}
    later = judging(shared_log, "again", stages=("grouping", "group-scoring"))
    again = await replace(later, settings=first.replay_settings).run(dry_run=True)
    assert {digest.stage: digest.digest for digest in again.digests} == {
        stage: digests[stage] for stage in ("grouping.main", "group-scoring.main")
    }
    assert again.records["run-log"] > 0


async def test_a_replay_of_judged_groups_takes_live_s_verdicts_and_asks_nobody(shared_log: Settings) -> None:
    first = judging(shared_log, name_of(shared_log, "judged"))
    digests = {digest.stage: digest.digest for digest in (await first.run()).digests}
    later = judging(shared_log, "again", stages=("grouping", "group-scoring"))
    asked_groups = []

    def ask_again(group: Sequence[Trajectory], context: RewardContext) -> list[float | None]:
        asked_groups.append(group)
        return turns(group, context)

    again = await replace(
        later,
        settings=first.replay_settings,
        plan=replace(later.plan, scores="recorded"),
        registry={**BUILT_IN, "turns": RewardFunction(ask_again, per="group")},
    ).run(dry_run=True)
    assert {digest.stage: digest.digest for digest in again.digests} == {
        stage: digests[stage] for stage in ("grouping.main", "group-scoring.main")
    }
    assert again.records["run-log"] > 0
    assert not asked_groups


async def test_a_judge_never_sees_an_episode_forgotten_after_its_group_closed(
    shared_log: Settings,
) -> None:
    first = judging(shared_log, name_of(shared_log, "before"))
    await first.run()
    written = await records(first.replay_settings, "trajectories")
    gone = next(record.episode_id for record in written if isinstance(record, Trajectory))
    await write_exclusions(first.replay_settings, exclusions([RootedEpisode(gone, gone)], reason="asked", now_ms=0))
    shown_episodes: set[str] = set()

    def watch_group(group: Sequence[Trajectory], context: RewardContext) -> list[float | None]:
        shown_episodes.update(member.episode_id for member in group)
        return turns(group, context)

    later = judging(shared_log, "after", stages=("group-scoring",))
    registry = {**BUILT_IN, "turns": RewardFunction(watch_group, per="group")}
    second_replay = replace(later, settings=first.replay_settings, registry=registry)
    await second_replay.run(dry_run=True)
    assert shown_episodes
    assert gone not in shown_episodes


async def test_a_judge_s_answer_is_taken_only_from_scores_that_asked_the_same(new_log: Settings) -> None:
    stream = new_log.stream_settings()
    now = RewardConfig(type="judge", name="quality", options={"rubric": "Is it kind?"})
    before = now.model_copy(update={"options": {"rubric": "Is it right?"}})
    configs = [
        ScoringConfig(rewards=(reward_config,))
        for reward_config in (before, now.model_copy(update={"weight": 2.0}), now)
    ]
    for number, config in enumerate(configs):
        trajectory = make_trajectory(f"e{number}")
        score = make_score(trajectory.trajectory_id, 0.5, episode_id=f"e{number}", components={"quality": 0.5},
                           config_hash=config.config_hash())  # fmt: skip
        if number < 2:  # the last is the settings' own
            await send_to_all(stream, TRAJECTORIES, data=encode(make_config("scoring", config)))
        key = trajectory.group_hint.encode()
        await send(stream, TRAJECTORIES.name, [(key, encode(trajectory))])
        await send(stream, SCORES.name, [(key, encode(score))])
    await send_everywhere(stream, encode(make_tick(0)))
    scoring, name = ScoringConfig(rewards=(now,), clip_high=0.4), name_of(new_log, "judged")
    replay = replay_of(new_log, name, scoring=configs[-1], new_scoring=scoring, stages=("scoring",))
    await replay.run()
    scores = [record for record in await records(replay.replay_settings, "scores") if isinstance(record, Score)]
    score_by_episode = {score.episode_id: score for score in scores}
    assert (score_by_episode["e1"].value, score_by_episode["e2"].value) == (0.4, 0.4)
    assert score_by_episode["e0"].outcome == "failed"
    assert "--rescore" in (score_by_episode["e0"].error or "")


async def test_a_replay_keeps_recorded_scores_across_a_change_of_scoring(
    settings: Settings,
) -> None:
    stream = settings.stream_settings()
    before = replay_of(settings, name_of(settings, "before"))
    await before.run()
    scores = [record for record in await records(before.replay_settings, SCORES.name) if isinstance(record, Score)]
    changed = settings.scoring.model_copy(update={"clip_high": 0.5})
    hashes = {
        trajectory: (settings.scoring if number % 2 else changed).config_hash()
        for number, trajectory in enumerate(sorted({score.trajectory_id for score in scores}))
    }
    live = [replace(score, config_hash=hashes[score.trajectory_id]) for score in scores]
    await send(stream, SCORES.name, [(live_score.group_hint.encode(), encode(live_score)) for live_score in live])
    await send_to_all(stream, TRAJECTORIES, data=encode(make_config("scoring", changed)))  # all scores lie before it
    await send_everywhere(stream, encode(make_tick(ROUNDS)))
    again = replay_of(settings, name_of(settings, "again"), scores="recorded", new_scoring=None)
    await again.run()
    replayed_scores = [
        record for record in await records(again.replay_settings, SCORES.name) if isinstance(record, Score)
    ]
    assert {score.trajectory_id: score.config_hash for score in replayed_scores} == hashes
    assert {score.value is not None and score.value > 0.5 for score in replayed_scores} == {True, False}
