"""The changelog tells what a table became since the last drain, and nothing that it does not need to tell."""

from hypothesis import given
from hypothesis import strategies as st

from rollbus.streams.state.rows import TEXT
from rollbus.streams.state.table import Table

CHANGES = st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.sampled_from("xyz")), max_size=6)
"""Keys, and what they are set to; None deletes."""


def change(table: Table[str], changes: list[tuple[str, str | None]]) -> None:
    for key, value in changes:
        if value is None:
            table.delete(key)
        else:
            table.put(key, value)


@given(st.lists(CHANGES, max_size=5))
def test_restoring_what_was_drained_gives_the_same_rows(batches: list[list[tuple[str, str | None]]]) -> None:
    live, restored = Table("t", TEXT), Table("t", TEXT)
    for changes in batches:
        known_keys = set(restored.rows)
        change(live, changes)
        drained = list(live.drain())
        for key, data in drained:
            restored.restore(key, data)
        assert restored.rows == live.rows
        assert {key for key, data in drained if data is None} <= known_keys


def test_a_row_put_and_deleted_between_two_drains_is_not_drained() -> None:
    table = Table("t", TEXT)
    change(table, [("a", "x"), ("a", "y"), ("a", None)])
    assert list(table.drain()) == []


def test_a_drained_row_is_drained_again_when_it_is_deleted() -> None:
    table = Table("t", TEXT)
    change(table, [("a", "x")])
    list(table.drain())
    change(table, [("a", None), ("a", "y"), ("a", None)])
    assert list(table.drain()) == [("a", None)]
