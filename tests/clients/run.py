"""An endpoint with passwords, and the clients of others on it; `make test-clients` fetches them.

python -m tests.clients.run FOLDER_OF_NODE_MODULES PYTHON_WITH_IBIS
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pydantic import SecretStr

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import migrate
from rollbus.consumers.clickhouse.store.plain_views import make_plain_views
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.local.clickhouse.service import clickhouse_service
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import ServiceProcess
from rollbus.local.process.tether import tethered
from rollbus.stack_settings import HOST
from tests.consumers.story import story
from tests.services.clickhouse.test_queries import write
from tests.services.endpoint.guarded_endpoint import write_passwords

HERE = Path(__file__).parent
OWN_PYTEST = ("-q", "-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider", "--noconftest")
"""Without the settings and plugins of this project, which the environment of ibis does not have."""
LIMIT_S = 600
"""Go compiles its client and Maven fetches one the first time."""
OWNER, READER = "owner's secret", "reader's secret"


def main(modules: Path, python: Path) -> int:
    """Return 0 if every client's tests pass."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), find_free_port()
        secrets = write_passwords(folder / "secrets", OWNER, READER)
        service = clickhouse_service(folder=folder / "data", port=port, secrets=secrets)
        process = ServiceProcess(service, log_path=folder / "log", prefix=tethered())
        try:
            process.start()
            process.wait_until_healthy()
            fill(ClickHouseSettings(port=port, password=SecretStr(OWNER), database="clients"))
            environment = os.environ | {
                "CLICKHOUSE": f"http://{HOST}:{port}",
                "CLICKHOUSE_ADDRESS": f"{HOST}:{port}",
                "OWNER": OWNER,
                "READER": READER,
                "VIEWS": "clients_views",
                "NODE_FOLDER": str(modules.resolve()),
            }
            return max(
                ran(["node", "--test", "--test-reporter=spec", "clickhouse.test.mjs"], HERE, environment),
                ran(["go", "test", "-count=1", "-v", "./..."], HERE / "go", environment),
                ran([str(python), "-m", "pytest", *OWN_PYTEST, "plain_views.py"], HERE / "bi", environment),
                ran(["mvn", "-B", "-q", "-Dstyle.color=never", "test"], HERE / "java", environment),
            )
        finally:
            process.stop()


def fill(settings: ClickHouseSettings) -> None:
    """Make the tables and their plain views, with a small log delivered twice."""
    migrate(settings)
    make_plain_views(settings)
    client = ClickHouse(settings)
    for delivery in range(2):
        write(client, "rollbus.", story(), first_offset=delivery * 1000)
    client.close()


def ran(command: list[str], folder: Path, environment: dict[str, str]) -> int:
    """Return 0 if the command succeeded, 1 if not."""
    print("$", *command, flush=True)
    return int(subprocess.run(command, cwd=folder, env=environment, timeout=LIMIT_S).returncode != 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]).absolute()))
