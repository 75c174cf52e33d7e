"""The plain views, as tools see them that list what there is and describe each: here SQLAlchemy's reflection.

ibis, another SQLAlchemy dialect and JDBC look at the same views in `make test-clients`.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from rollbus.consumers.clickhouse.questions.saved_questions import ask
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.plain_views import make_plain_views
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.schemas.ids import trajectory_id
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.steps import DroppedMember, TrainedMember
from tests.builders import START_MS, make_score, make_step, make_trajectory
from tests.consumers.story import Record, story
from tests.services.clickhouse.test_namespaces_apart import of_run
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
    write(client, "rollbus.", [group for group in groups if group[2] is not None], first_offset=5000)
    write(client, "rollbus.", [("run-log", "second", make_removal("second"))], first_offset=6000)
    write(client, "replay-b.", story())
    write(client, "replay-scored.", [record for record in story() if record[0] in ("scores", "run-log")])
    write(client, "family.", list(family()))
    write(client, "contested.", list(contested_records()))
    yield settings
    client.close()


def family() -> Iterator[Record]:
    """A root with labels, and its sub-agent of another process, which does not know them."""
    yield "trajectories", "k", make_trajectory("root", labels={"user": "ann", "plan": "free"}, opening_hash="o1")
    yield "trajectories", "k", make_trajectory("sub", root_episode_id="root", labels={"plan": "paid"})
    yield "scores", "k", make_score(trajectory_id("root"), 1.0, opening_sketch="a1b2c3d4", labels={})
    yield "training-steps", "main", make_step(1)


def contested_records() -> Iterator[Record]:
    """Trajectories that several records decide on: in two steps, by two drops, by both, at one time or none."""
    whole = ("again", "first-drop", "same-time", "after-drop", "waiting")
    for name in whole:
        yield "trajectories", "k", make_trajectory(name)
    yield "scores", "k", make_score("scored-only")
    for number, trained, dropped in ((2, ("again", "after-drop"), ("first-drop", "same-time")), (1, ("again",), ())):
        yield (
            "training-steps",
            "main",
            make_step(
                number,
                trained=tuple(
                    TrainedMember(
                        trajectory_id=trajectory_id(name), group_id="g", lag=0, advantage=1.0, sampled_tokens=2
                    )
                    for name in trained
                ),
                dropped=tuple(
                    DroppedMember(trajectory_id=trajectory_id(name), group_id="g", reason="stale") for name in dropped
                ),
                completed_at_ms=START_MS,
            ),
        )
    for name, run, stage, reason, at_ms in (
        ("first-drop", None, "scoring", "untrainable", START_MS - 5),
        ("first-drop", "main", "grouping", "group_closed", START_MS - 6),
        ("same-time", "main", "grouping", "group_closed", START_MS),
        ("after-drop", None, "scoring", "excluded", START_MS - 1),
        ("unknown", "main", "curriculum", "superseded", START_MS),
        ("waiting", "other", "grouping", "group_closed", START_MS),
    ):
        identity = trajectory_id(name)
        drop = Drop(unit="trajectory", unit_id=identity, reason=reason, stage=stage, dropped_at_ms=at_ms, run_id=run)
        yield "drops", "k", drop


QUESTIONS = re.findall(
    r"^\*\*(.+?)\*\*.*?```sql\n(.+?)```",
    (Path(__file__).parents[3] / "docs/sql.md").read_text().partition("## Ten questions")[2],
    re.DOTALL | re.MULTILINE,
)


def test_the_page_has_ten_questions() -> None:
    assert len(QUESTIONS) == 10


@pytest.mark.parametrize(("question", "sql"), QUESTIONS, ids=[question for question, _ in QUESTIONS])
def test_each_of_the_ten_questions_has_an_answer(settings: ClickHouseSettings, question: str, sql: str) -> None:
    result = ask(settings, sql.replace("rollbus_views", f"{settings.database}_views"))
    assert result.rows, question
    assert len(set(result.columns)) == len(result.columns)


def test_a_sub_agents_fate_has_its_roots_labels(settings: ClickHouseSettings) -> None:
    sql = f"SELECT episode_id, labels, cluster FROM {settings.database}_views.fates WHERE namespace = 'family.'"
    assert {
        (episode, tuple(sorted(labels.items())), cluster) for episode, labels, cluster in ask(settings, sql).rows
    } == {
        ("root", (("plan", "free"), ("user", "ann")), "a1"),
        ("sub", (("plan", "paid"), ("user", "ann")), ""),
    }


def test_a_turn_names_its_trajectory_and_version(settings: ClickHouseSettings) -> None:
    views = f"{settings.database}_views"
    turns = ask(settings, f"SELECT episode_id, trajectory_id, task, policy_version FROM {views}.all_turns").rows
    assert ("e5", trajectory_id("e5"), "play", 0) in turns
    count = f"SELECT count() FROM {views}.turns"
    assert len(turns) == ask(settings, count).rows[0][0]


def test_feedback_to_gradient_has_a_row_for_each_trained_reward(
    settings: ClickHouseSettings,
) -> None:
    views = f"{settings.database}_views"
    rows = ask(
        settings,
        f"SELECT trajectory_id, reward, value, step, training_lag_s FROM {views}.feedback_to_gradient "
        "WHERE namespace = 'rollbus.' AND run_id = 'main'",
    ).rows
    trained = ask(
        settings,
        f"SELECT trajectory_id FROM {views}.step_members "
        "WHERE namespace = 'rollbus.' AND run_id = 'main' AND fate = 'trained'",
    )
    assert {row[0] for row in rows} == {row[0] for row in trained.rows}
    assert all(lag > 0 for *_, lag in rows)


@pytest.fixture(scope="module")
def engine(settings: ClickHouseSettings) -> Iterator[sa.Engine]:
    sql_engine = sa.create_engine(f"clickhousedb://default:@{settings.host}:{settings.port}/{settings.database}_views")
    yield sql_engine
    sql_engine.dispose()


def test_a_whole_database_is_reflected_with_every_table_and_its_columns(
    settings: ClickHouseSettings, engine: sa.Engine
) -> None:
    metadata = sa.MetaData()
    metadata.reflect(engine, views=True)
    tables = ask(settings, "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%Tree'")
    assert set(metadata.tables) == {name for (name,) in tables.rows} - {"schema_migrations"} | {
        "all_turns",
        "fates",
        "feedback_to_gradient",
        "influence",
        "latest_scores",
    }
    assert {"task", "labels", "kafka_offset"} <= set(metadata.tables["episodes"].columns.keys())
    with engine.connect() as connection:
        for table in metadata.tables.values():
            connection.execute(sa.select(table).limit(1)).fetchall()


def test_a_record_that_was_delivered_twice_is_there_once(engine: sa.Engine) -> None:
    table = sa.Table("trajectories", sa.MetaData(), autoload_with=engine)
    with engine.connect() as connection:
        assert (
            connection.execute(
                sa.select(sa.func.count()).select_from(table).where(table.c.namespace == "rollbus.")
            ).scalar()
            == 9
        )


@pytest.mark.parametrize(
    ("namespace", "run", "count"),
    [("rollbus.", "main", 9), ("rollbus.", "second", 9), ("contested.", "main", 7), ("replay-scored.", "main", 8)],
)
def test_plain_fates_equal_those_of_the_view_with_parameters(
    settings: ClickHouseSettings, engine: sa.Engine, namespace: str, run: str, count: int
) -> None:
    fates = sa.Table("fates", sa.MetaData(), autoload_with=engine)
    chosen = sa.select(
        fates.c.trajectory_id, fates.c.fate, sa.func.coalesce(fates.c.step, 0), fates.c.stage, fates.c.reason
    ).where(fates.c.namespace == namespace, fates.c.run_id == run)
    with engine.connect() as connection:
        plain = {tuple(row) for row in connection.execute(chosen)}
    columns = "trajectory_id, fate, step, stage, reason"
    sql = f"SELECT {columns} FROM trajectory_fates(namespace = {{namespace:String}}, run = {{run:String}})"
    fates_of_view = ask(settings, sql, {"namespace": namespace, "run": run}).rows
    assert (plain, len(plain)) == (set(fates_of_view), count)
    assert len(fates_of_view) == count
    sql = (
        "SELECT fate, stage, reason, trajectories "
        "FROM counted_fates(namespace = {namespace:String}, run = {run:String})"
    )
    counted = {tuple(row[:3]): row[3] for row in ask(settings, sql, {"namespace": namespace, "run": run}).rows}
    assert counted == Counter((fate, stage, reason) for _, fate, _, stage, reason in fates_of_view)


def test_the_plain_fates_carry_task_version_and_newest_reward(engine: sa.Engine) -> None:
    fates = sa.Table("fates", sa.MetaData(), autoload_with=engine)
    statement = sa.select(fates.c.task, fates.c.policy_version, fates.c.reward, fates.c.fate).where(
        fates.c.namespace == "rollbus.", fates.c.run_id == "main", fates.c.episode_id == "e5"
    )
    with engine.connect() as connection:
        assert [tuple(row) for row in connection.execute(statement)] == [("play", 0, 0.0, "trained")]


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
