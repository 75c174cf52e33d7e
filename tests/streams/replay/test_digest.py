"""A digest knows everything of a record but where something stands."""

from dataclasses import replace
from typing import Any

import pytest

from rollbus.schemas.codec import encode
from rollbus.schemas.records.groups import ClosedGroup
from rollbus.schemas.records.trajectories import Location
from rollbus.streams.replay.decide.digest import Digest, bytes_without_location, combine_digests
from tests.builders import make_group, make_member, make_score
from tests.trainer.scenario import make_batch

PLACES = [
    Location(topic="rollbus.trajectories", partition=0, offset=0),
    Location(topic="replay-better.trajectories", partition=77, offset=2**40 + 64),
]


def records(place: Location, reward: float = 1.0) -> list[Any]:
    hints = {"turn": "report"}
    places: dict[str, Any] = {"location": place, "revised_at": place, "hints_at": place}
    members = tuple(make_member(name, reward, hints=hints, **places) for name in ("a", "b"))
    group = make_group(members=members)
    batch = make_batch(0, [group])
    return [make_score(location=place, revised_at=place, value=reward), group, ClosedGroup(group=group), batch]


@pytest.mark.parametrize("index", range(4))
def test_only_the_location_is_left_out(index: int) -> None:
    left, right = (
        bytes_without_location(records_of_place[index], encode(records_of_place[index]))
        for records_of_place in map(records, PLACES)
    )
    assert left == right
    assert len(left) < len(encode(records(PLACES[0])[index]))
    changed = records(PLACES[0], 2.0)[index]
    assert bytes_without_location(changed, encode(changed)) != left


def test_every_member_s_location_is_left_out_however_long_its_offset_is() -> None:
    offsets = [0, 63, 64, 8_191, 8_192, 2**20 - 1, 2**20, 2**27, 2**52]
    places = [Location(topic="trajectories", partition=0, offset=offset) for offset in offsets]
    members = [make_member(str(number), location=place) for number, place in enumerate(places)]
    alike = [replace(member, location=places[0]) for member in members]
    left, right = make_group(members=tuple(members)), make_group(members=tuple(alike))
    assert bytes_without_location(left, encode(left)) == bytes_without_location(right, encode(right))


def test_a_record_without_location_stays_as_it_is() -> None:
    group = replace(make_group(), members=())
    assert bytes_without_location(group, encode(group)) == encode(group)


def digest_of(*outputs: tuple[str, str, Any, bytes]) -> bytes:
    digest = Digest()
    for output in outputs:
        digest.add(*output)
    return digest.value()


def test_a_digest_depends_on_topic_key_bytes_and_order() -> None:
    drop, right = b"one", b"other"
    base = digest_of(("drops", "k", None, drop), ("drops", "k", None, right))
    changed = [
        digest_of(("scores", "k", None, drop), ("drops", "k", None, right)),
        digest_of(("drops", "x", None, drop), ("drops", "k", None, right)),
        digest_of(("drops", "k", None, drop), ("drops", "k", None, b"others")),
        digest_of(("drops", "k", None, drop), ("drops", "k", None, b"othes")),
        digest_of(("drops", "k", None, right), ("drops", "k", None, drop)),
        digest_of(("drops", "k", None, drop)),
    ]
    assert len({base, *changed}) == 1 + len(changed)


def test_every_partition_counts_wherever_it_was_decided() -> None:
    left, right = Digest(), Digest()
    right.add("drops", "k", None, b"one")
    assert combine_digests([left, right]) != combine_digests([left, left])
    assert combine_digests([left, right]) != combine_digests([right, left])
    assert combine_digests([left, right.value()]) == combine_digests([left, right])
