"""The benchmark's generated database on ClickHouse's real engine: what is known of it is what the questions answer."""

import pytest

from benchmarks.analytics.expected import expected, summary
from benchmarks.analytics.generate import fill
from benchmarks.analytics.run import asked
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from tests.services.clickhouse.test_queries import answer, new_database

pytestmark = pytest.mark.services

TRAJECTORIES = 12_800


@pytest.fixture(scope="module")
def generated(clickhouse: tuple[str, int]) -> ClickHouseSettings:
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    assert len(list(fill(client, TRAJECTORIES))) > 20
    client.close()
    return settings


@pytest.mark.parametrize("name", sorted(expected(TRAJECTORIES)))
def test_what_is_known_of_the_generated_rows_is_what_the_questions_answer(
    generated: ClickHouseSettings, name: str
) -> None:
    assert summary(name, answer(generated, name)) == expected(TRAJECTORIES)[name]


@pytest.mark.parametrize("name", ["lineage_of_step", "lineage_of_episode", "lineage_of_event", "trained_by_label"])
def test_what_is_timed_has_an_answer(generated: ClickHouseSettings, name: str) -> None:
    client = ClickHouse(generated)
    _, rows = client.query(*asked(name, TRAJECTORIES))
    client.close()
    assert rows


def test_a_step_is_traced_to_all_of_its_events(generated: ClickHouseSettings) -> None:
    rows = answer(generated, "lineage_of_step", step=51)
    assert len({row["event_id"] for row in rows}) == len(rows) == 6 * len({row["trajectory_id"] for row in rows})
    assert len({row["group_id"] for row in rows}) == 10  # of sixteen; the others have no signal
    assert sum(row["turn"] is not None for row in rows) == 2 * len({row["trajectory_id"] for row in rows})
    assert [row["position"] for row in rows] == sorted(row["position"] for row in rows)
    assert answer(generated, "lineage_of_step") == answer(generated, "lineage_of_step", step=99)
