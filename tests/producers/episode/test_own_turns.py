"""Turns that a program reports itself, because no recorded client has called its model."""

import json
from datetime import UTC, datetime
from typing import Any, cast

import numpy
import pytest

from rollbus.producers import MemorySink, Recorder
from rollbus.schemas.records.events import TurnRecorded
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids
from tests.producers.recorded_events import turns

QUESTION = [{"role": "user", "content": "How many bolts?"}]


def test_a_turn_of_another_engine_is_trainable_with_its_ids_and_log_probs(recorder: Recorder, sink: MemorySink) -> None:
    with recorder.episode(task="stock") as episode:
        episode.turn(
            messages=QUESTION,
            answer="Seven.",
            model="mine@4",
            prompt_token_ids=[1, 2],
            token_ids=[7, 8],
            logprobs=[-0.5, 0.0],
            temperature=1.0,
            function="keeper",
            at=datetime(2026, 5, 1, tzinfo=UTC),
        )
    (turn,) = turns(recorder, sink)
    assert (turn.untrainable_reason, turn.policy_version, turn.function) == (None, 4, "keeper")
    assert list(decode_token_ids(turn.completion_token_ids or b"")) == [7, 8]
    assert list(decode_logprobs(turn.logprobs or b"")) == [-0.5, 0.0]
    assert turn.occurred_at_ms == 1_777_593_600_000
    assert (turn.added_messages[0].content, turn.completion.content) == ("How many bolts?", "Seven.")


def test_a_turn_without_ids_has_a_reason_and_unreadable_fields_are_counted(
    recorder: Recorder, sink: MemorySink
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    with recorder.episode(task="stock") as episode:
        episode.turn(messages=QUESTION, answer={"role": "assistant", "content": None, "tool_calls": [call]})
        episode.turn(messages=QUESTION, answer="x", at=datetime(2026, 5, 1))
        episode.turn(messages=QUESTION, answer="x", token_ids=[1, 2], prompt_token_ids=[1], logprobs=[-1.0])
        episode.turn(messages=QUESTION, answer="x", token_ids=[1], prompt_token_ids=[1], logprobs=[-1.0])
    assert recorder.flush(120)
    recorded_turns = [event for event in sink.records("episode-events") if isinstance(event, TurnRecorded)]
    assert [turn.untrainable_reason for turn in recorded_turns] == [
        "no_logprobs",
        "length_mismatch",
        "sampling_unknown",
    ]
    assert "look" in (recorded_turns[0].completion.tool_calls or "")
    assert recorder.counters["hook_errors.turn"] == 1


@pytest.mark.parametrize("as_list", [True, False])
def test_ids_and_log_probs_may_be_arrays_of_numpy(recorder: Recorder, sink: MemorySink, as_list: bool) -> None:
    logprobs: Any = numpy.array([-0.5, -0.25], dtype=numpy.float32)
    with recorder.episode(task="stock") as episode:
        episode.turn(
            messages=QUESTION,
            answer="Seven.",
            prompt_token_ids=cast(Any, numpy.array([1, 2])),
            token_ids=cast(Any, numpy.array([7, 8])),
            logprobs=list(logprobs) if as_list else logprobs,
            temperature=1.0,
        )
    (turn,) = turns(recorder, sink)
    assert turn.untrainable_reason is None
    assert list(decode_logprobs(turn.logprobs or b"")) == [-0.5, -0.25]


def test_a_refusal_leaves_the_other_parts_of_its_message(recorder: Recorder, sink: MemorySink) -> None:
    refusing_message = {"role": "assistant", "content": [{"type": "text", "text": "I may not."}], "refusal": "no"}
    with recorder.episode(task="stock") as episode:
        episode.turn(messages=[*QUESTION, refusing_message], answer="Seven.")
    (turn,) = turns(recorder, sink)
    assert json.loads(turn.added_messages[1].parts or "") == [
        {"type": "text", "text": "I may not."},
        {"type": "refusal", "refusal": "no"},
    ]
