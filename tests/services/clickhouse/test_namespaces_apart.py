"""What other namespaces and other runs wrote changes no answer of the saved questions."""

from dataclasses import is_dataclass, replace
from typing import Any

import pytest

from rollbus.consumers.clickhouse.questions.saved_questions import list_queries, run_query
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.schemas.ids import event_id, trajectory_id
from tests.consumers.story import Record, story
from tests.services.clickhouse.test_queries import beside_the_story, new_database, replay_records, write

pytestmark = pytest.mark.services

ABOUT_THE_STORY: dict[str, dict[str, Any]] = {
    "lineage_of_episode": {"episode": "e1"},
    "lineage_of_event": {"id": event_id("e1", "w1", 1)},
    "why_group_not_trained": {"group": "g2"},
    "why_not_trained": {"id": trajectory_id("e2")},
    "live_against_replay": {"replay": "replay-x."},
    "shadow_against_live": {"other": "replay-x."},
    "trained_by_label": {"value": "ada"},
}
"""The values with which a question is asked of the story; the others have defaults."""
OF_ALL_RUNS = {"is_anything_lost", "lineage_of_episode", "lineage_of_event", "drops_by_reason"}
"""Questions about the log, or about what every run did with it."""


def of_run(record: Any, run: str) -> Any:
    """The record as another run would have written it."""
    if not is_dataclass(record) or isinstance(record, type) or getattr(record, "run_id", None) != "main":
        return None
    return replace(record, run_id=run)


def answers(settings: ClickHouseSettings) -> dict[str, list[tuple[Any, ...]]]:
    rows_by_question = {}
    for query in list_queries():
        rows = run_query(settings, query.name, ABOUT_THE_STORY.get(query.name, {})).rows
        rows_by_question[query.name] = sorted(rows, key=repr)
    return rows_by_question


def changed_answers(before: dict[str, Any], after: dict[str, Any], *, but: set[str]) -> dict[str, Any]:
    return {
        name: (rows, after[name])
        for name, rows in before.items()
        if name not in but and repr(rows) != repr(after[name])
    }


def test_an_answer_holds_no_rows_of_other_namespaces(clickhouse: tuple[str, int]) -> None:
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    story_records: list[Record] = [*story(), *beside_the_story()]
    write(client, "rollbus.", story_records)
    write(client, "replay-x.", replay_records())
    before = answers(settings)
    write(client, "other.", story_records, first_offset=5000)
    assert changed_answers(before, answers(settings), but=set()) == {}, "another namespace"
    others = [(topic, key, of_run(record, "second")) for topic, key, record in story_records]
    write(
        client, "rollbus.", [other_record for other_record in others if other_record[2] is not None], first_offset=7000
    )
    assert changed_answers(before, answers(settings), but=OF_ALL_RUNS) == {}, "another run"
    client.close()
