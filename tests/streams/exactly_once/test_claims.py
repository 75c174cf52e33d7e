"""Whose a partition is, as the note of the committed offset says, and where a new owner goes on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.streams.exactly_once.claims import Committed, claim, parse, start_of

KINDS = st.sampled_from(["transaction", "claim", "first claim"])
OWNERS = st.from_regex(r"[a-z]+\.[a-z.-]+\.[0-9a-f]{8}\.[0-9]+", fullmatch=True)


@given(st.builds(Committed, st.integers(0, 2**40), OWNERS, KINDS))
def test_the_metadata_of_an_offset_names_its_writer(committed: Committed) -> None:
    assert parse(committed.offset, committed.note) == committed


def test_an_offset_that_a_tool_has_set_has_no_owner() -> None:
    assert parse(5, "") == Committed(5, "")


def test_a_claim_keeps_the_offset_that_it_finds() -> None:
    assert claim(Committed(5, "old"), "new", first=0) == Committed(5, "new", "claim")
    assert claim(Committed(5, "old", "claim"), "new", first=0) == Committed(5, "new", "claim")


def test_the_first_claim_stays_the_first_until_something_is_committed() -> None:
    first = claim(None, "a", first=3)
    assert first == Committed(3, "a", "first claim")
    assert claim(first, "b", first=3) == Committed(3, "b", "first claim")
    assert start_of(None, claim(first, "b", first=9)) == 3


@pytest.mark.parametrize(
    ("described", "committed_offset", "start"),
    [
        (None, None, None),
        (5, None, 5),  # the broker has forgotten the offset
        (5, Committed(5, "x"), 5),
        (5, Committed(5, "x", "claim"), 5),
        (7, Committed(5, "x", "claim"), 7),  # the claim came late
        (7, Committed(0, "x", "first claim"), 7),
        (None, Committed(3, "x", "first claim"), 3),  # retention may have taken more since
        (2, Committed(3, "x", "first claim"), 2),  # the broker has forgotten the offset, and retention took the rest
    ],
)
def test_work_continues_if_changelog_and_offset_agree(
    described: int | None, committed_offset: Committed | None, start: int | None
) -> None:
    assert start_of(described, committed_offset) == start


@pytest.mark.parametrize(
    ("described", "committed_offset"),
    [
        (4, Committed(5, "x")),
        (6, Committed(5, "x")),
        (None, Committed(5, "x")),
        (4, Committed(5, "x", "claim")),
        (None, Committed(5, "x", "claim")),
    ],
)
def test_offsets_that_disagree_are_an_error(described: int | None, committed_offset: Committed) -> None:
    with pytest.raises(ValueError, match=f"{described} is not {committed_offset.offset}"):
        start_of(described, committed_offset)
