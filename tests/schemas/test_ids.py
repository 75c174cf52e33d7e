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


NEAR_TEXT = st.lists(st.sampled_from((":", "%", "%3A", "%25", "/", "a", "")), max_size=4).map("".join)
"""Texts that run into each other if they can."""
PARTS = st.lists(TEXT | NEAR_TEXT, min_size=1, max_size=4)


@given(PARTS, PARTS)
def test_only_equal_parts_give_the_same_joined_text(left: list[str], right: list[str]) -> None:
    assert (ids.join_parts(*left) == ids.join_parts(*right)) == (left == right)


def test_parts_without_a_colon_are_joined_as_they_are() -> None:
    assert ids.join_parts("example", "web-search/v2", "é 17") == "example:web-search/v2:é 17"


HINTED = st.fixed_dictionaries(
    {"group_id": st.none() | NEAR_TEXT, "task": NEAR_TEXT, "example_id": st.none() | NEAR_TEXT, "opening_hash": TEXT}
)


@given(HINTED, HINTED)
def test_only_possible_members_of_a_group_share_its_hint(left: dict[str, Any], right: dict[str, Any]) -> None:
    def facts(hinted: dict[str, Any]) -> list[str]:
        if hinted["group_id"] is not None:
            return ["group", hinted["group_id"]]
        if hinted["example_id"] is not None:
            return ["example", hinted["task"], hinted["example_id"]]
        return ["opening", hinted["task"], hinted["opening_hash"]]

    assert (ids.group_hint(**left) == ids.group_hint(**right)) == (facts(left) == facts(right))


@given(NEAR_TEXT, NEAR_TEXT)
def test_only_one_thread_has_a_pauses_name(left: str, right: str) -> None:
    assert (ids.pause_name(left) == ids.pause_name(right)) == (left == right)
    assert "/" not in ids.pause_name(left)


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
