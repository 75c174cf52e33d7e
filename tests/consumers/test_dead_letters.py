"""What an operator is told of dead letters, and which of them are written again."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.consumers.dead_letters import chosen, copies, described, frames, kinds, origin, without_letter
from rollbus.schemas.attempts import ATTEMPT_HEADER, attempt_of, origin_of
from rollbus.schemas.chunks import join, parse
from rollbus.schemas.codec import encode
from rollbus.schemas.drops import DeadLetter
from tests.builders import make_tick

LETTER = DeadLetter(
    topic="n.episode-events",
    partition=1,
    offset=7,
    timestamp_ms=5,
    key=b"k",
    value=encode(make_tick(0))[:12],
    stage="assembly",
    error_class="UndecodableError",
    message="cut short",
)


def test_letters_are_counted_by_topic_stage_and_class_the_most_frequent_first() -> None:
    rare = replace(LETTER, error_class="InvalidRecordError", attempt=2)
    found = kinds([rare, LETTER, replace(LETTER, offset=8, timestamp_ms=9)])
    assert [(kind.error_class, kind.count, kind.most_attempts) for kind in found] == [
        ("UndecodableError", 2, 1),
        ("InvalidRecordError", 1, 2),
    ]
    assert origin(found[0].newest) == "n.episode-events:1:8"


def test_an_origin_is_found_with_and_without_namespace() -> None:
    for name in ("n.episode-events:1:7", "episode-events:1:7"):
        assert chosen([LETTER, replace(LETTER, offset=8)], origins=[name], namespace="n.") == [LETTER]
    assert chosen([LETTER], error_class="InvalidRecordError") == []


def test_an_origin_without_a_letter_is_told_from_those_that_have_one() -> None:
    names = ["episode-events:1:7", "n.episode-events:1:7", "episode-events:1:8", "nonsense"]
    assert without_letter([LETTER], names, namespace="n.") == ["episode-events:1:8", "nonsense"]


def test_a_record_is_written_again_once_and_never_without_a_value() -> None:
    by_sink = replace(LETTER, stage="sink", attempt=2)
    (copy,) = copies([LETTER, by_sink, replace(LETTER, offset=9, value=None)], [])
    assert (copy.origin, copy.attempt, copy.letter.value) == ("n.episode-events:1:7", 3, LETTER.value)
    assert copies([LETTER], ["n.episode-events:1:7"]) == []


def test_a_large_record_is_written_again_in_chunks_of_which_only_the_last_says_that_it_is_there() -> None:
    large = bytes(2_000_000)
    written = frames(copies([replace(LETTER, value=large)], [])[0])
    parts = [parse(value) for value, _ in written]
    assert join({part.index: part.part for part in parts}, parts[0].digest) == large
    assert [attempt_of(headers) for _, headers in written] == [2, 2, 2]
    assert [origin_of(headers) for _, headers in written] == [None, None, "n.episode-events:1:7"]


def test_a_letter_is_shown_with_its_bytes_and_what_they_claim_to_be() -> None:
    shown = dict(described(LETTER))
    assert shown["claims to be"] == "Tick"
    assert shown["value"].startswith("12 bytes: c301")
    assert shown["error"] == "UndecodableError: cut short"


@given(st.binary(max_size=12))
def test_any_header_gives_an_attempt(value: bytes) -> None:
    assert attempt_of([("other", b"9"), (ATTEMPT_HEADER, value)]) >= 0


@pytest.mark.parametrize(
    ("headers", "attempt"), [([], 1), ([(ATTEMPT_HEADER, b"3")], 3), ([(ATTEMPT_HEADER, b"x")], 1)]
)
def test_an_attempt_stands_in_a_header(headers: list[tuple[str, bytes]], attempt: int) -> None:
    assert attempt_of(headers) == attempt
