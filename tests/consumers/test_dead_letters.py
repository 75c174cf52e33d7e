"""What an operator sees of dead letters, and which of them are written again."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.consumers.dead_letters import (
    control_name,
    count_kinds,
    describe_letter,
    letter_origin,
    make_copies,
    origins_without_letter,
    select_letters,
    set_aside,
    standing_letters,
)
from rollbus.schemas.codec import encode
from rollbus.schemas.limits import MAX_LETTER_BYTES, MAX_LETTER_KEY_BYTES
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.control import OPERATOR
from rollbus.schemas.records.drops import ATTEMPT_HEADER, ORIGIN_HEADER, attempt_of, kept_bytes, origin_of
from tests.builders import make_config, make_excluded, make_letter, make_tick, make_tool

CUT = kept_bytes(b"k", encode(make_tool())[:12])
LETTER = make_letter(topic="n.episode-events", partition=1, timestamp_ms=5, stage="assembly", **CUT)


def test_dead_letters_are_counted_by_kind_with_the_most_frequent_first() -> None:
    rare = replace(LETTER, error_class="InvalidRecordError", attempt=2)
    kinds = count_kinds([rare, LETTER, replace(LETTER, offset=8, timestamp_ms=9)])
    assert [(kind.error_class, kind.count, kind.most_attempts) for kind in kinds] == [
        ("UndecodableError", 2, 1),
        ("InvalidRecordError", 1, 2),
    ]
    assert letter_origin(kinds[0].newest) == "n.episode-events:1:8"


def test_a_dead_letter_set_aside_does_not_hide_a_later_one() -> None:
    other = replace(LETTER, offset=8)
    (dismissal,) = set_aside([LETTER, replace(LETTER, stage="sink")], "its producer is gone", 9)
    assert standing_letters([LETTER, other, dismissal]) == [other]
    assert standing_letters([LETTER, dismissal, replace(LETTER, attempt=2)]) == [replace(LETTER, attempt=2)]
    assert (dismissal.message, dismissal.stage, dismissal.value) == ("its producer is gone", "operator", None)


def test_an_origin_is_found_with_and_without_namespace() -> None:
    for name in ("n.episode-events:1:7", "episode-events:1:7"):
        assert select_letters([LETTER, replace(LETTER, offset=8)], origins=[name], namespace="n.") == [LETTER]
    assert select_letters([LETTER], error_class="InvalidRecordError") == []


def test_an_origin_without_a_letter_differs_from_one_with_a_letter() -> None:
    names = ["episode-events:1:7", "n.episode-events:1:7", "episode-events:1:8", "nonsense"]
    assert origins_without_letter([LETTER], names, namespace="n.") == ["episode-events:1:8", "nonsense"]


def test_a_record_is_written_again_once_and_never_without_a_value() -> None:
    by_sink = replace(LETTER, stage="sink", attempt=2)
    (copy,) = make_copies([LETTER, by_sink, replace(LETTER, offset=9, value=None)], [], {})
    assert (copy.origin, copy.attempt, copy.letter.value) == ("n.episode-events:1:7", 3, LETTER.value)
    assert make_copies([LETTER], ["n.episode-events:1:7"], {}) == []


@pytest.mark.parametrize(("key", "value"), [(b"k", bytes(range(256)) * 4_000), (b"k" * 20_000, b"small")])
def test_a_letter_of_many_bytes_is_written_again_from_its_original_alone(key: bytes, value: bytes) -> None:
    letter, place = replace(LETTER, **kept_bytes(key, value)), "n.episode-events:1:7"
    assert not letter.is_whole
    assert len(encode(letter)) < MAX_LETTER_BYTES + MAX_LETTER_KEY_BYTES + 1_000
    (copy,) = make_copies([letter], [], {place: (key, value)})
    assert (copy.letter.key, copy.letter.value) == (key, value)
    assert make_copies([letter], [], {}) == make_copies([letter], [], {place: (key, value[:-1])}) == []


def test_a_letter_is_shown_with_its_bytes_and_what_they_claim_to_be() -> None:
    description = dict(describe_letter(LETTER))
    assert description["claims to be"] == "ToolCalled"
    assert description["value"].startswith("12 bytes: c301")
    assert description["error"] == "UndecodableError: not a record"


@given(st.binary(max_size=12))
def test_any_header_gives_the_number_of_an_attempt(value: bytes) -> None:
    assert attempt_of([("other", b"9"), (ATTEMPT_HEADER, value)]) >= 0


@pytest.mark.parametrize(
    ("headers", "attempt"),
    [([], 1), ([(ATTEMPT_HEADER, b"3")], 3), ([(ATTEMPT_HEADER, b"x")], 1), ([(ATTEMPT_HEADER, None)], 1)],
)
def test_the_number_of_an_attempt_is_in_a_header(headers: list[tuple[str, bytes | None]], attempt: int) -> None:
    assert attempt_of(headers) == attempt


def test_a_header_without_a_value_names_no_origin() -> None:
    assert origin_of([(ORIGIN_HEADER, None)]) is None


def test_a_record_that_needs_the_owners_signature_is_not_written_again() -> None:
    """A copy has no signature; and where nobody has a key, a forger's record would be believed at last."""
    said_by_operator = replace(make_excluded("e1"), writer_id=OPERATOR)
    for record in (make_tick(0), make_config("assembly", AssemblyConfig()), said_by_operator):
        letter = replace(LETTER, **kept_bytes(b"k", encode(record)), error_class="UntrustedRecordError")
        assert make_copies([letter], [], {}) == []
        assert control_name(letter) == type(record).__name__
    by_a_producer = replace(LETTER, **kept_bytes(b"k", encode(replace(said_by_operator, writer_id="w1"))))
    assert len(make_copies([by_a_producer], [], {})) == 1
    assert control_name(replace(LETTER, value=None)) is None
    config = encode(make_config("assembly", AssemblyConfig(target_model="x" * MAX_LETTER_BYTES)))
    cut = replace(LETTER, **kept_bytes(b"k", config))
    assert make_copies([cut], [], {letter_origin(cut): (b"k", config)}) == []
