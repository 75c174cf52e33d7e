"""A digest knows everything of a record but where something stands."""

from dataclasses import replace
from typing import Any

import pytest

from rollbus.schemas.codec import encode
from rollbus.schemas.groups import ClosedGroup
from rollbus.schemas.trajectories import Location
from rollbus.streams.batching import make_batch
from rollbus.streams.replay.digest import bytes_without_location
from tests.builders import make_group, make_member, make_score

PLACES = [
    Location(topic="rollbus.trajectories", partition=0, offset=0),
    Location(topic="replay-better.trajectories", partition=77, offset=2**40 + 64),
]


def records(place: Location, reward: float = 1.0) -> list[Any]:
    members = tuple(make_member(name, reward, location=place) for name in ("a", "b"))
    group = make_group(members=members)
    batch = make_batch(
        run_id="main", model="agent", number=0, window=0, groups=[group], newest=0, now_ms=0, config_hash=""
    )
    return [make_score(location=place, value=reward), group, ClosedGroup(group=group), batch]


@pytest.mark.parametrize("index", range(4))
def test_only_the_location_is_left_out(index: int) -> None:
    one, other = (bytes_without_location(made[index], encode(made[index])) for made in map(records, PLACES))
    assert one == other
    assert len(one) < len(encode(records(PLACES[0])[index]))
    changed = records(PLACES[0], 2.0)[index]
    assert bytes_without_location(changed, encode(changed)) != one


def test_a_record_without_location_stays_as_it_is() -> None:
    group = replace(make_group(), members=())
    assert bytes_without_location(group, encode(group)) == encode(group)
