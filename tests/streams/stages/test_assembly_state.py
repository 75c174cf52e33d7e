"""What assembly's index says is missing of a writer, whatever the order of arrival."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas.records.events import Event, WriterClosed
from rollbus.streams.stages.assembly.open_episode import OpenEpisode
from rollbus.streams.stages.assembly.rows import EventRow

ENVELOPE: dict[str, Any] = {
    **dict.fromkeys(("event_id", "episode_id", "root_episode_id"), "e"),
    **dict.fromkeys(("occurred_at_ms", "episode_started_at_ms"), 0),
}


def event_of(sequence: int, count: int | None) -> Event:
    envelope = {**ENVELOPE, "writer_id": "w", "sequence": sequence}
    return Event(**envelope) if count is None else WriterClosed(**envelope, count=count)


@given(st.permutations(range(12)), st.integers(1, 12), st.none() | st.integers(0, 11))
def test_the_missing_events_of_a_writer_are_counted_by_sequence(order: list[int], came: int, count: int | None) -> None:
    episode, seen = OpenEpisode(), set(order[:came])
    for sequence in order[:came]:
        closes = sequence == count
        episode.add(
            str(sequence),
            EventRow("w" if closes else "t", 0, b""),
            "w",
            sequence,
            event_of(sequence, count if closes else None),
        )
    closed = count if count in seen else None
    expected = set(range(max(seen) + 1 if closed is None else closed)) - seen
    assert episode.writers["w"].missing() == len(expected)
