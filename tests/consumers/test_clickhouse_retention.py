"""How long rows are kept, and which parts of a log no range covers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rollbus.consumers.clickhouse.maintain.forget import TABLES as TABLES_OF_EPISODES
from rollbus.consumers.clickhouse.maintain.stored_ranges import StoredRange, split_by_ranges
from rollbus.consumers.clickhouse.sink.log import OffsetSpan
from rollbus.consumers.clickhouse.store.retention import TABLES, days_by_table
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings, TableRetention
from rollbus.settings import Settings


def test_only_tables_with_content_can_expire() -> None:
    assert sorted(table for group in TABLES.values() for table in group) == sorted(
        [*TABLES_OF_EPISODES, "dead_letters"]
    )


def test_retention_settings_apply_to_the_kinds_below_them() -> None:
    assert days_by_table(TableRetention()) == {}
    assert set(days_by_table(TableRetention(episodes_days=9)).values()) == {9}
    days = days_by_table(TableRetention(texts_days=5))
    assert (days["turns"], days["turn_tokens"], days.get("events")) == (5, 5, None)


def test_details_that_would_outlive_what_they_belong_to_are_refused_by_name() -> None:
    with pytest.raises(ValidationError, match="tokens_days is 90 and episodes_days only 30"):
        TableRetention(tokens_days=90, episodes_days=30)
    with pytest.raises(ValidationError, match="texts_days is 31"):
        TableRetention(texts_days=31, episodes_days=30)


def test_episodes_that_forget_could_not_find_in_the_archive_are_refused() -> None:
    short = ClickHouseSettings(retention=TableRetention(episodes_days=30))
    with pytest.raises(ValidationError, match=r"episodes_days: `rollbus forget --label` would not find"):
        Settings.model_validate({"clickhouse": short.model_dump(), "archive": {"url": "s3://bucket"}})


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=6),
    st.integers(0, 10),
    st.integers(0, 25),
)
def test_a_log_is_split_where_ranges_begin_and_end(ranges: list[tuple[int, int]], begin: int, length: int) -> None:
    stored_ranges = [StoredRange(first, first + size - 1, first + size, 1, 1, "") for first, size in sorted(ranges)]
    covered = {offset for stored_range in stored_ranges for offset in range(stored_range.first, stored_range.next)}
    span = OffsetSpan(begin, begin + length)
    parts = split_by_ranges(span, stored_ranges)
    assert [offset for part, _ in parts for offset in range(part.begin, part.end)] == list(range(begin, begin + length))
    assert all(is_noted == (offset in covered) for part, is_noted in parts for offset in range(part.begin, part.end))
    assert all(left[1] != right[1] for left, right in pairwise(parts)), "as few parts as can be"
