"""Assembly says what a naive assembly says, record by record, whatever comes and however often it is restarted."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.trajectories import RewardRevised, Trajectory
from rollbus.streams.stages.assembly.stage import AssemblyStage
from tests.builders import (
    START_MS,
    make_closed,
    make_episode,
    make_excluded,
    make_reward,
    make_started,
    make_tick,
    make_turn,
)
from tests.examples import count_examples
from tests.stepper import Stepper
from tests.streams.stages.naive_assembly import NaiveAssembly, Telling

CONFIG = AssemblyConfig(inactivity_ms=30_000, pause_ms=50_000, late_horizon_ms=60_000)


def extras(episode: str) -> list[Any]:
    """What else may come of an episode."""
    first = make_reward(episode, 0.5, key="a")
    return [
        first,
        make_reward(episode, 0.75, key="b", supersedes=first.event_id),
        make_reward(episode, None, key="c", supersedes=first.event_id, retracted=True),
        make_reward(episode, 0.1, sequence=0, writer="feedback"),
        make_excluded(episode),
        replace(make_started(episode), task="other"),
        make_turn(episode, 0, writer="w2"),
        make_closed(episode, 1, writer="w2"),
        replace(make_closed(episode, 0, writer="w3"), paused=True),
    ]


POOL = [event for name in ("e1", "e2") for event in [*make_episode(name), *extras(name)]]
RECORDS = st.one_of(
    st.sampled_from(POOL),
    st.sampled_from(POOL),
    st.sampled_from(POOL),
    st.integers(0, 40),
)
"""An event, or so many seconds that pass."""


def telling_of(record: Any) -> Telling:
    if isinstance(record, Drop):
        return ("drop", record.reason, record.unit_id)
    if isinstance(record, RewardRevised):
        return ("revised", record.episode_id, record.revision, values(record), record.excluded)
    assert isinstance(record, Trajectory)
    return ("trajectory", record.episode_id, record.trainable, len(record.turns), values(record))


def values(record: Trajectory | RewardRevised) -> tuple[tuple[str, float], ...]:
    return tuple((reward.event_id, reward.value) for reward in record.rewards)


@settings(max_examples=count_examples(150), deadline=None)
@given(st.lists(RECORDS, max_size=40), st.booleans(), st.booleans())
def test_assembly_agrees_with_a_naive_one(records: list[Any], restoring: bool, prefix: bool) -> None:
    stepper, naive = Stepper(AssemblyStage(CONFIG), restoring=restoring), NaiveAssembly(CONFIG)
    number, now_ms = 0, START_MS
    for record in [*(make_episode("e1")[:4] if prefix else ()), *records, *[70] * 4]:
        if isinstance(record, int):
            number, now_ms = number + 1, now_ms + record * 1_000
            record = make_tick(number, stream_time_ms=now_ms)
        assert [telling_of(out) for out in stepper.feed(record)] == naive.feed(record)
    assert {key.split(b"\x1f")[0] for key in stepper.changelog} == {b"clock"}
