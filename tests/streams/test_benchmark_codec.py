"""The rival's codec of the benchmarks, held against ours: what does not do the same work is no rival."""

import random

from benchmarks.streams.avro_library import Codec, assembled, codec, library_reader, library_writer
from benchmarks.streams.events import episode
from rollbus.schemas.codec import decode, encode, record_name


def test_the_avro_library_and_our_codec_give_the_same_trajectories() -> None:
    ours, library = Codec(record_name, decode, encode), codec(library_reader(), library_writer("Trajectory"))
    chance = random.Random(3)
    for number in range(20):
        group = {"group_id": f"group-{number}", "group_size": 4} if number % 2 else {}
        events = episode(number, chance, reward=float(number % 3), **group)  # type: ignore[arg-type]
        our_trajectories = assembled(events, ours)
        assert len(our_trajectories) == 1
        assert assembled(events, library) == our_trajectories


def test_the_avro_library_tells_a_record_by_its_header() -> None:
    library = codec(library_reader(), library_writer("Trajectory"))
    names = [library.record_name(event) for event in episode(0, random.Random(3))]
    assert names == [record_name(event) for event in episode(0, random.Random(3))]
