"""Records that no stage could handle are refused at the door; all others pass."""

from dataclasses import replace
from typing import Any

import pytest

from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.records.trajectories import Location
from rollbus.schemas.soundness import check_sound
from tests.builders import make_closed, make_episode, make_group, make_score, make_started, make_tick, make_turn


@pytest.mark.parametrize("record", [*make_episode(turns=2), make_group(), make_score(), make_tick(1)])
def test_good_records_pass(record: Any) -> None:
    check_sound(record)


def test_large_numbers_that_are_not_counts_pass() -> None:
    check_sound(make_turn(seed=2**63 - 1))
    check_sound(make_score(location=Location(topic="t", partition=0, offset=2**40)))
    check_sound(make_turn(policy_version=20_260_101_120_000))


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (make_started("e\x1f1"), "EpisodeStarted: episode_id holds the control character"),
        (make_started(group_id="g\x1f"), "group_id holds"),
        (replace(make_closed(), count=2**31), "WriterClosed: count 2,147,483,648 is out of range"),
        (make_score(revision=-(2**62)), "Score: revision"),
        (replace(make_tick(1), stream_time_ms=2**62), "Tick: stream_time_ms"),
        (make_score(location=Location(topic="t", partition=0, offset=2**60)), "Location: offset"),
    ],
)
def test_a_field_that_no_stage_could_handle_is_named(record: Any, words: str) -> None:
    with pytest.raises(InvalidRecordError, match=words):
        check_sound(record)
