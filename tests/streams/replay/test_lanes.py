"""The first stages in several processes: what comes out is what one process gives, record for record."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas.codec import decode
from rollbus.schemas.records.config import ScoringConfig
from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.records.trajectories import Score, Trajectory
from rollbus.schemas.topics import DROPS, SCORES
from rollbus.streams.replay.decide.scores import HeaderScoring, RecordedScoring
from rollbus.streams.stages.scoring.stage import ScoringStage
from rollbus.streams.state.stage import Incoming
from tests.streams.replay.lanes import replayed_in_lanes
from tests.streams.replay.memory import Frames, replayed
from tests.streams.replay.test_chain import INPUTS, SEEDS, few, list_sources, stages_of
from tests.streams.simulation.history import ASSEMBLY, Past, live
from tests.streams.simulation.judging import REGISTRY

HOW = st.sampled_from(["whole", "answered", "recorded"])
"""What goes with a trajectory: nothing, so that it is decoded again; header and answers; its header alone."""


def scoring(past: Past, how: str) -> Any:
    """How the scores are made: computed, or read from live's by header or trajectory."""
    stage = HeaderScoring(ScoringConfig(), keep_ms=ASSEMBLY.late_horizon_ms, registry=REGISTRY)
    if how != "recorded":
        return stage
    scores = [entry.record for entry in past.broker.committed(SCORES) if isinstance(entry.record, Score)]
    score_by_revision = {(score.trajectory_id, score.revision): score for score in scores}

    async def find(hint: str, trajectory_id: str, revision: int, at_ms: int) -> Score | None:
        return score_by_revision.get((trajectory_id, revision))

    return RecordedScoring(stage, find, {})


async def ask_all(trajectories: Sequence[Trajectory]) -> Any:
    stage = ScoringStage(ScoringConfig(), keep_ms=0, registry=REGISTRY)
    place: Any = None
    return await stage.answer(stage.new_state(), [Incoming(trajectory, "", place, b"") for trajectory in trajectories])


def stages_for(past: Past, how: str, kinds: Sequence[str]) -> list[Any]:
    return [scoring(past, how) if isinstance(stage, ScoringStage) else stage for stage in stages_of(past, *kinds)]


async def in_lanes(past: Past, size: int, lanes: int, how: str, kinds: Sequence[str] = tuple(INPUTS)) -> Any:
    return await replayed_in_lanes(
        stages_for(past, how, kinds), list_sources(past, INPUTS[kinds[0]], size), partitions=past.broker.partitions,
        lanes=lanes, with_headers=how != "whole", ask_all=ask_all if how == "answered" else None,
    )  # fmt: skip


async def in_one(past: Past, size: int, how: str, kinds: Sequence[str] = tuple(INPUTS)) -> Any:
    return await replayed(stages_for(past, how, kinds), list_sources(past, INPUTS[kinds[0]], size),
                          partitions=past.broker.partitions)  # fmt: skip


def without_counts(frames: Frames) -> Frames:
    return {place: rows for place, rows in frames.items() if rows}


@few
@given(seed=SEEDS, sizes=st.tuples(st.integers(1, 40), st.integers(1, 40)), lanes=st.integers(1, 3), how=HOW)
async def test_the_output_does_not_depend_on_the_number_of_processes(
    seed: int, sizes: tuple[int, int], lanes: int, how: str
) -> None:
    past = live(seed)
    alone, frames = await in_one(past, sizes[0], how)
    several, lane_frames = await in_lanes(past, sizes[1], lanes, how)
    assert without_counts(lane_frames) == without_counts(frames)
    assert several.digests() == alone.digests()
    assert several.stream_time_ms == alone.stream_time_ms
    written = [decode(frame) for (topic, _), rows in frames.items() if topic == DROPS.name for _, frame in rows]
    assert several.drops == alone.drops == Counter(drop.reason for drop in written)
    failed = Counter(drop.detail for drop in written if drop.reason == DropReason.SCORE_FAILED)
    assert several.failures == alone.failures == failed


@few
@given(seed=SEEDS, lanes=st.integers(1, 3))
async def test_runs_that_read_the_scores_do_not_depend_on_the_processes(seed: int, lanes: int) -> None:
    past = live(seed)
    kinds = ("grouping", "group-scoring", "curriculum")
    alone, frames = await in_one(past, 20, "whole", kinds)
    several, lane_frames = await in_lanes(past, 7, lanes, "whole", kinds)
    assert without_counts(lane_frames) == without_counts(frames)
    assert several.digests() == alone.digests()
