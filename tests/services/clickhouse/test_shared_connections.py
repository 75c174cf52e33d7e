"""Questions of one process go over the connections that it has."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import clickhouse_connect
import pytest

from rollbus.consumers.clickhouse.questions.saved_questions import ask
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.local.clickhouse.service import clickhouse_service
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import ServiceProcess
from rollbus.schemas.errors import RejectedError, UnavailableError

pytestmark = pytest.mark.services


@pytest.fixture
def opened_clients(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What each connection was opened with."""
    opened_clients: list[dict[str, Any]] = []
    real = clickhouse_connect.get_client

    def get_client(**options: Any) -> Any:
        opened_clients.append(options)
        return real(**options)

    monkeypatch.setattr(clickhouse_connect, "get_client", get_client)
    return opened_clients


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceProcess, ClickHouseSettings]]:
    """An endpoint to stop and start."""
    folder, port = tmp_path_factory.mktemp("clickhouse"), find_free_port()
    process = ServiceProcess(clickhouse_service(folder=folder / "data", port=port), log_path=folder / "clickhouse.log")
    process.start()
    process.wait_until_healthy()
    yield process, ClickHouseSettings(port=port, database="default")
    process.stop()


def test_concurrent_questions_have_a_connection_each(
    own_server: tuple[ServiceProcess, ClickHouseSettings], opened_clients: list[dict[str, Any]]
) -> None:
    _, settings = own_server
    for number in range(3):
        assert ask(settings, f"SELECT {number}").rows == [(number,)]
    assert len(opened_clients) == 1
    with pytest.raises(RejectedError):
        ask(settings, "SELECT nonsense")
    assert ask(settings, "SELECT 4").rows == [(4,)]
    assert len(opened_clients) == 2, "a connection is opened again after an error"
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda number: ask(settings, f"SELECT {number}, sleep(0.2)").rows, range(20))
        assert [number for ((number, _),) in answers] == list(range(20))
    assert len(opened_clients) <= 2 + 3
    assert ask(settings.model_copy(update={"database": "system"}), "SELECT currentDatabase()").rows == [("system",)]


def test_questions_are_answered_again_after_the_server_was_away(
    own_server: tuple[ServiceProcess, ClickHouseSettings],
) -> None:
    process, settings = own_server
    assert ask(settings, "SELECT 1").rows == [(1,)]
    process.stop()
    with pytest.raises(UnavailableError):
        ask(settings, "SELECT 1")
    process.start()
    process.wait_until_healthy()
    assert ask(settings, "SELECT 2").rows == [(2,)]
