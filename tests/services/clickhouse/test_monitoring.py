"""Each query of the dashboard is answered by the tables as the sink makes them."""

import json
import re

import pytest

from rollbus.consumers.clickhouse.store.client import ClickHouse
from tests.health.test_monitoring import DASHBOARD
from tests.services.clickhouse.test_queries import new_database

pytestmark = pytest.mark.services


def test_every_query_of_the_dashboard_is_answered(clickhouse: tuple[str, int], namespace: str) -> None:
    client = ClickHouse(new_database(clickhouse))
    queries = [
        target["rawSql"]
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel["targets"]
        if "rawSql" in target
    ]
    for query in queries:
        statement = re.sub(r"\$__timeFilter\((\w+)\)", r"\1 > now() - INTERVAL 1 DAY", query)
        _, rows = client.query(statement.replace("$namespace", namespace), {})  # raises for a column that is not there
        assert list(rows) == []
    client.close()
    assert len(queries) == 6
