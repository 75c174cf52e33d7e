"""ibis and clickhouse-sqlalchemy on the plain views, as the user that only reads; `make test-clients` runs it.

It runs in an environment of its own, which has neither rollbus nor its tests.
"""

import os
from urllib.parse import quote, urlsplit

import ibis
import sqlalchemy as sa

ADDRESS = urlsplit(os.environ["CLICKHOUSE"])
VIEWS = os.environ["VIEWS"]
READER = os.environ["READER"]


def connect() -> ibis.BaseBackend:
    return ibis.clickhouse.connect(
        host=ADDRESS.hostname, port=ADDRESS.port, database=VIEWS, user="readonly", password=READER
    )


def test_ibis_lists_and_describes_every_view() -> None:
    connection = connect()
    tables = connection.list_tables()
    assert {"fates", "latest_scores", "trajectories", "turns"} <= set(tables)
    for name in tables:
        assert connection.table(name).schema().names


def test_ibis_groups_and_joins_without_repeats() -> None:
    connection = connect()
    fates, episodes = connection.table("fates"), connection.table("episodes")
    counted = fates.filter(fates.run_id == "main").group_by("fate").agg(n=ibis._.count()).execute()
    assert dict(zip(counted["fate"], counted["n"], strict=True)) == {"trained": 4, "dropped": 4, "pending": 1}
    joined = fates.filter(fates.run_id == "main").join(episodes, fates.episode_id == episodes.episode_id)
    assert joined.count().execute() == 9


def test_another_dialect_of_sqlalchemy_reflects_a_view_and_reads_it() -> None:
    address = f"clickhouse+http://readonly:{quote(READER)}@{ADDRESS.hostname}:{ADDRESS.port}/{VIEWS}"
    engine = sa.create_engine(address)
    fates = sa.Table("fates", sa.MetaData(), autoload_with=engine)
    with engine.connect() as connection:
        chosen = sa.select(fates.c.fate).where(fates.c.run_id == "main", fates.c.episode_id == "e1")
        assert [tuple(row) for row in connection.execute(chosen)] == [("trained",)]
