"""The five questions with which the demo ends are answered."""

import pytest
from rich.console import Console

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.demo.show.report import MOST_ROWS, QUESTIONS, print_answers
from tests.consumers.story import story
from tests.services.test_clickhouse_queries import new_database, write

pytestmark = pytest.mark.services


def test_every_question_of_the_demo_has_an_answer(
    clickhouse: tuple[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    write(client, "demo.", list(story()))
    client.close()
    print_answers(Console(width=200), settings, namespace="demo.", run="main")
    printed = capsys.readouterr().out
    for name in QUESTIONS:
        assert f"rollbus sql run {name.replace('_', '-')}  (" in printed
    assert "(0 of" not in printed
    assert f"({MOST_ROWS} of" in printed, "a long answer is cut"
