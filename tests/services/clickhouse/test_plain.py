"""The plain views, as tools see them that list what there is and describe each: here SQLAlchemy's reflection.

ibis, another SQLAlchemy dialect and JDBC look at the same views in `make test-clients`.
"""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from rollbus.consumers.clickhouse.questions.saved import ask
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.plain_views import make_plain_views
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from tests.consumers.story import story
from tests.services.clickhouse.test_apart import of_run
from tests.services.clickhouse.test_queries import make_removal, new_database, write

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def settings(clickhouse: tuple[str, int]) -> Iterator[ClickHouseSettings]:
    """The story twice over, as a repeated delivery leaves it, and a second run of its own."""
    settings = new_database(clickhouse)
    assert "fates" in make_plain_views(settings)
    client = ClickHouse(settings)
    for delivery in range(2):
        write(client, "rollbus.", story(), first_offset=delivery * 1000)
    groups = [(topic, key, of_run(record, "second")) for topic, key, record in story() if topic == "run-log"]
    write(client, "rollbus.", [each for each in groups if each[2] is not None], first_offset=5000)
    write(client, "rollbus.", [("run-log", "second", make_removal("second"))], first_offset=6000)
    yield settings
    client.close()


@pytest.fixture(scope="module")
def engine(settings: ClickHouseSettings) -> Iterator[sa.Engine]:
    made = sa.create_engine(f"clickhousedb://default:@{settings.host}:{settings.port}/{settings.database}_views")
    yield made
    made.dispose()


def test_a_whole_database_is_reflected_with_every_table_and_its_columns(
    settings: ClickHouseSettings, engine: sa.Engine
) -> None:
    found = sa.MetaData()
    found.reflect(engine, views=True)
    tables = ask(settings, "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%Tree'")
    assert set(found.tables) == {name for (name,) in tables.rows} - {"schema_migrations"} | {
        "fates",
        "influence",
        "latest_scores",
    }
    assert {"task", "labels", "kafka_offset"} <= set(found.tables["episodes"].columns.keys())
    with engine.connect() as connection:
        for table in found.tables.values():
            connection.execute(sa.select(table).limit(1)).fetchall()


def test_a_record_that_was_delivered_twice_is_there_once(engine: sa.Engine) -> None:
    table = sa.Table("trajectories", sa.MetaData(), autoload_with=engine)
    with engine.connect() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(table)).scalar() == 9


@pytest.mark.parametrize("run", ["main", "second"])
def test_the_plain_fates_are_those_of_the_view_with_parameters(
    settings: ClickHouseSettings, engine: sa.Engine, run: str
) -> None:
    fates = sa.Table("fates", sa.MetaData(), autoload_with=engine)
    chosen = sa.select(
        fates.c.trajectory_id, fates.c.fate, sa.func.coalesce(fates.c.step, 0), fates.c.stage, fates.c.reason
    ).where(fates.c.run_id == run)
    with engine.connect() as connection:
        plain = {tuple(row) for row in connection.execute(chosen)}
    columns = "trajectory_id, fate, step, stage, reason"
    sql = f"SELECT {columns} FROM trajectory_fates(namespace = 'rollbus.', run = {{run:String}})"
    assert plain == set(ask(settings, sql, {"run": run}).rows)
    assert len(plain) == 9


def test_the_plain_fates_carry_task_version_and_newest_reward(engine: sa.Engine) -> None:
    fates = sa.Table("fates", sa.MetaData(), autoload_with=engine)
    asked = sa.select(fates.c.task, fates.c.policy_version, fates.c.reward, fates.c.fate).where(
        fates.c.run_id == "main", fates.c.episode_id == "e5"
    )
    with engine.connect() as connection:
        assert [tuple(row) for row in connection.execute(asked)] == [("play", 0, 0.0, "trained")]


def test_views_are_made_again_only_where_a_table_has_changed(settings: ClickHouseSettings) -> None:
    assert make_plain_views(settings) == []
    client = ClickHouse(settings)
    client.command("ALTER TABLE replays ADD COLUMN IF NOT EXISTS colour String")
    client.close()
    assert make_plain_views(settings) == ["replays"]


def test_a_user_that_may_not_make_a_database_is_warned_and_goes_on(
    settings: ClickHouseSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from rollbus.schemas.errors import RejectedError

    def refuse(self: ClickHouse, sql: str) -> None:
        raise RejectedError("not enough privileges")

    monkeypatch.setattr(ClickHouse, "command", refuse)
    assert make_plain_views(settings) == []
    assert f"no plain views for other tools in database {settings.database}_views: not enough privileges" in caplog.text
