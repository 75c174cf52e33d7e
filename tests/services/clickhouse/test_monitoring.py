"""Each query of the dashboard is answered by the tables as the sink makes them."""

import json
import re

import pytest

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import migrate
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from tests.health.test_monitoring import DASHBOARD

pytestmark = pytest.mark.services


def test_every_query_of_the_dashboard_is_answered(clickhouse: tuple[str, int], namespace: str) -> None:
    host, port = clickhouse
    settings = ClickHouseSettings(host=host, port=port, database=f"grafana_{namespace[2:8]}")
    migrate(settings)
    client = ClickHouse(settings)
    queries = [
        target["rawSql"]
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel["targets"]
        if "rawSql" in target
    ]
    try:
        for query in queries:
            shown = re.sub(r"\$__timeFilter\((\w+)\)", r"\1 > now() - INTERVAL 1 DAY", query)
            _, rows = client.query(shown.replace("$namespace", namespace), {})  # raises for a column that is not there
            assert list(rows) == []
    finally:
        client.close()
    assert len(queries) == 6
