"""Ids are facts of their content: the same on every machine, for ever."""

import uuid
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas import ids

TEXT = st.text(st.characters(codec="utf-8"))


def test_ids_never_change() -> None:
    assert ids.event_id("episode", "writer", 3) == "e8ef0e86-1b2e-583b-b99d-69079f59a533"
    assert ids.reward_event_id("episode", "thumbs", "k1") == "df222549-bdc8-5e1a-b58f-6b972033ebdd"
    assert ids.trajectory_id("episode") == "0fe426a5-5cfb-5e05-8503-a5584e8d7cac"
    assert ids.content_hash({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad808"


def test_parts_cannot_run_into_each_other() -> None:
    assert ids.stable_id("event", "ab", "c") != ids.stable_id("event", "a", "bc")


def test_parts_with_half_a_character_have_ids_of_their_own() -> None:
    assert ids.reward_event_id("a", "thumbs", "\ud800") != ids.reward_event_id("a", "thumbs", "\ud801")


def test_hash_does_not_depend_on_the_order_of_keys() -> None:
    assert ids.content_hash({"a": 1, "b": 2}) == ids.content_hash({"b": 2, "a": 1})


def test_explicit_group_wins_over_example_and_opening() -> None:
    hint = ids.group_hint(group_id="g", task="t", example_id="e", opening_hash="o")
    assert hint == "group:g"
    assert ids.group_hint(group_id=None, task="t", example_id="e", opening_hash="o") == "example:t:e"
    assert ids.group_hint(group_id=None, task="t", example_id=None, opening_hash="o") == "opening:t:o"


@given(TEXT, TEXT)
def test_a_stable_id_is_the_uuid5_of_its_parts(kind: str, part: str) -> None:
    name = f"{kind}\x1f{part}\x1f7"
    assert ids.stable_id(kind, part, 7) == str(uuid.uuid5(ids.NAMESPACE, name))


@given(st.lists(st.dictionaries(TEXT, TEXT) | st.dictionaries(TEXT, TEXT | st.integers() | st.none() | st.lists(TEXT))))
def test_a_history_hashes_as_its_canonical_json_does(messages: list[dict[str, Any]]) -> None:
    assert ids.messages_hash(messages) == ids.content_hash(messages)


def test_names_sort_with_their_numbers_as_numbers() -> None:
    names = ["e10", "e2", "e", "d3.5", "e02", "d3.10"]
    assert sorted(names, key=ids.natural_order) == ["d3.5", "d3.10", "e", "e02", "e2", "e10"]


def test_a_name_may_have_more_digits_than_python_takes_into_an_int() -> None:
    longer, shorter = f"e2{'0' * 5000}", f"e9{'0' * 4999}"
    assert sorted([longer, shorter], key=ids.natural_order) == [shorter, longer]


@given(st.text(), st.text())
def test_only_equal_names_sort_as_equal(left: str, right: str) -> None:
    assert (ids.natural_order(left) == ids.natural_order(right)) == (left == right)
