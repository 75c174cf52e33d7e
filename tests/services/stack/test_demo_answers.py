"""The five questions with which the demo ends are answered, and the plot has what it draws."""

import pytest
from rich.console import Console

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.demo.show.report import MOST_ROWS, QUESTIONS, print_answers
from rollbus.demo.show.status import GroupWins, read_groups
from rollbus.schemas.records.steps import StepCompleted, TrainedMember
from tests.builders import make_score, make_step
from tests.consumers.story import story
from tests.services.clickhouse.test_queries import new_database, write

pytestmark = pytest.mark.services


def make_long_step() -> StepCompleted:
    """A step with one member more than the report has rows."""
    members = (
        TrainedMember(trajectory_id=f"t{number}", group_id="g1", lag=0, advantage=0.5, sampled_tokens=2)
        for number in range(MOST_ROWS + 1)
    )
    return make_step(3, trained=tuple(members))


def test_every_question_of_the_demo_has_an_answer(
    clickhouse: tuple[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    write(client, "demo.", [*story(), ("training-steps", "main", make_long_step())])
    client.close()
    print_answers(Console(width=200), settings, namespace="demo.", run="main")
    printed = capsys.readouterr().out
    for name in QUESTIONS:
        assert f"rollbus sql run {name.replace('_', '-')}  (" in printed
    assert "(0 of" not in printed
    assert f"({MOST_ROWS} of {MOST_ROWS + 1} rows)" in printed, "a long answer is cut"


def test_attempts_at_one_opening_are_one_group_of_the_plot(
    clickhouse: tuple[str, int],
) -> None:
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    attempts = [(opening, number) for opening in ("a", "b", "c") for number in range(4)]
    scores = [
        make_score(
            f"{opening}{number}", float(number == 0), version=2, example_id=None, group_hint=f"opening:{opening}"
        )
        for opening, number in attempts
    ]
    write(client, "demo.", [("scores", score.group_hint, score) for score in scores])
    assert read_groups(client.query, namespace="demo.") == (GroupWins(2, 0.25),) * 3
    client.close()
