"""An episode of a conversation is declared once, with what the user said to it."""

from typing import Any

import pytest

from rollbus.producers import MemorySink, Recorder
from rollbus.schemas.records.events import AliasDeclared, RewardReported


def alias_declarations(recorder: Recorder, sink: MemorySink) -> list[Any]:
    assert recorder.flush(120)
    return [record for record in sink.records("aliases") if isinstance(record, AliasDeclared)]


def test_the_first_call_declares_the_message_of_the_user(recorder: Recorder, sink: MemorySink) -> None:
    with recorder.episode(task="t", conversation="c1") as episode:
        messages = [{"role": "system", "content": "rules"}, {"role": "user", "content": "no, the parcel"}]
        episode.turn(messages=messages, answer="DELIVERY")
        episode.turn(messages=[*messages, {"role": "user", "content": "more"}], answer="OTHER")
    (record,) = alias_declarations(recorder, sink)
    assert (record.alias, record.conversation, record.message) == ("conversation:c1", True, "no, the parcel")
    assert record.episode_id == episode.id
    assert sink.records("episode-events")[0].labels == {"conversation": "c1"}


def test_a_message_of_the_caller_is_declared_at_once(recorder: Recorder, sink: MemorySink) -> None:
    episode = recorder.start(task="t", conversation="c1", message="x" * 5_000)
    (record,) = alias_declarations(recorder, sink)
    assert record.message == "x" * 4_000
    episode.end()
    assert len(alias_declarations(recorder, sink)) == 1


def test_an_episode_without_a_call_is_declared_at_its_end(recorder: Recorder, sink: MemorySink) -> None:
    with recorder.episode(task="t", conversation="c1"):
        assert alias_declarations(recorder, sink) == []
    assert [record.message for record in alias_declarations(recorder, sink)] == [None]


def test_a_part_of_an_episode_is_not_a_turn_of_its_conversation(recorder: Recorder, sink: MemorySink) -> None:
    with (
        recorder.episode(task="t", conversation="c1", message="hello"),
        recorder.episode(task="t", conversation="c1") as child,
    ):
        child.turn(messages=[{"role": "user", "content": "an instruction"}], answer="done")
    assert [record.message for record in alias_declarations(recorder, sink)] == ["hello"]


def test_parts_of_a_message_are_joined(recorder: Recorder, sink: MemorySink) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "here"}]
    with recorder.episode(task="t", conversation="c1") as episode:
        episode.turn(messages=[{"role": "user", "content": parts}], answer="a cat")
    assert [record.message for record in alias_declarations(recorder, sink)] == ["look\nhere"]


def test_a_signal_reaches_the_last_turn_of_a_conversation(recorder: Recorder, sink: MemorySink) -> None:
    recorder.feedback(conversation="c1", signal="edit", comment="as it should be", key="k")
    assert recorder.flush(120)
    (report,) = sink.records("aliases")
    assert (report.alias, report.name, report.signal) == ("conversation:c1", "next_turn", "edit")
    assert (report.value, report.comment, report.source) == (None, "as it should be", "user")


def test_words_alone_are_the_users_reply(recorder: Recorder, sink: MemorySink) -> None:
    recorder.feedback(conversation="c1", comment="no, it is the parcel")
    with recorder.episode(task="t") as episode:
        episode.reward(None, comment="thanks")
    recorder.feedback(conversation="c1", name="csat", retracted=True, key="k")
    assert recorder.flush(120)
    first, withdrawn = sink.records("aliases")
    (second,) = [record for record in sink.records("episode-events") if isinstance(record, RewardReported)]
    for report in (first, second):
        assert (report.name, report.signal, report.value) == ("next_turn", "reply", None)
    assert (withdrawn.name, withdrawn.signal, withdrawn.retracted) == ("csat", "", True)


@pytest.mark.parametrize(
    "fields", [{"signal": "retry", "reward": 1.0}, {"signal": "shrug"}, {}, {"comment": " "}, {"name": "csat"}]
)
def test_unreadable_events_are_counted_and_not_sent(
    recorder: Recorder, sink: MemorySink, fields: dict[str, Any]
) -> None:
    assert recorder.feedback(conversation="c1", **fields) is None
    assert recorder.flush(120)
    assert sink.records("aliases") == []
    assert recorder.counters["hook_errors.feedback"] == 1
