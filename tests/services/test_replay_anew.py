"""Groups judged anew on a real broker: what is asked about is fetched from where the replay has just written it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rollbus.schemas.config import RewardConfig, RunConfig
from rollbus.schemas.groups import Group
from rollbus.schemas.trajectories import Trajectory
from rollbus.settings import Settings
from rollbus.streams.replay.run_kafka import Replay
from rollbus.streams.rewards.contract import RewardContext, RewardFunction
from rollbus.streams.rewards.registry import BUILT_IN
from tests.services.replay_live import records
from tests.services.test_replay_kafka import name_of, replay_of, settings

pytestmark = pytest.mark.services
__all__ = ["settings"]


def turns(group: Sequence[Trajectory], context: RewardContext) -> list[float | None]:
    """What stands in no score."""
    return [float(len(one.turns)) for one in group]


REGISTRY = {**BUILT_IN, "turns": RewardFunction(turns, per="group")}


def judging(settings: Settings, name: str, **changes: Any) -> Replay:
    """A replay whose first run has its groups judged, by asking."""
    run = settings.runs[0]
    grouping = run.grouping.model_copy(update={"rewards": (RewardConfig(type="turns", name="turns"),)})
    runs: tuple[RunConfig, ...] = (run.model_copy(update={"grouping": grouping}),)
    return replace(replay_of(settings, name, runs=runs, scores="anew", **changes), registry=REGISTRY)


async def test_a_group_judged_anew_is_asked_about_with_the_trajectories_of_the_replay(settings: Settings) -> None:
    told: dict[int, Any] = {}
    for processes in (1, 2):
        replay = replace(judging(settings, name_of(settings, "anew", str(processes))), processes=processes)
        manifest = await replay.run()
        written = await records(replay.replay_settings, "trajectories")
        groups = [each for each in await records(replay.replay_settings, "run-log") if isinstance(each, Group)]
        lengths = {each.trajectory_id: float(len(each.turns)) for each in written if isinstance(each, Trajectory)}
        members = [member for group in groups for member in group.members]
        assert {each.components["turns"] for each in members} == {1.0, 2.0, 3.0}
        assert all(each.components["turns"] == lengths[each.trajectory_id] for each in members)
        told[processes] = manifest.digests
    assert told[1] == told[2]


async def test_a_dry_run_from_recorded_scores_judges_what_stands_in_their_own_namespace(settings: Settings) -> None:
    first = judging(settings, name_of(settings, "first"))
    digests = {one.stage: one.digest for one in (await first.run()).digests}
    later = judging(settings, "again", stages=("grouping", "group-scoring"))
    again = await replace(later, settings=first.replay_settings).run(dry_run=True)
    assert {one.stage: one.digest for one in again.digests} == {
        stage: digests[stage] for stage in ("grouping.main", "group-scoring.main")
    }
    assert again.records["run-log"] > 0
