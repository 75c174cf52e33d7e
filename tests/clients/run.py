"""An endpoint with passwords, and the clients of others on it; `make test-clients` fetches them.

python -m tests.clients.run FOLDER_OF_NODE_MODULES
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rollbus.local.clickhouse.service import clickhouse_service
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import ServiceProcess
from rollbus.local.process.settings import HOST
from rollbus.local.process.tether import tethered
from tests.services.clickhouse_guarded import write_passwords

HERE = Path(__file__).parent
LIMIT_S = 300
"""Go compiles its client and Maven fetches one the first time."""
OWNER, READER = "owner's secret", "reader's secret"


def main(modules: Path) -> int:
    """Return 0 if every client's tests pass."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), find_free_port()
        secrets = write_passwords(folder / "secrets", OWNER, READER)
        service = clickhouse_service(folder=folder / "data", port=port, secrets=secrets)
        process = ServiceProcess(service, log_path=folder / "log", prefix=tethered())
        try:
            process.start()
            process.wait_until_healthy()
            environment = os.environ | {
                "CLICKHOUSE": f"http://{HOST}:{port}",
                "CLICKHOUSE_ADDRESS": f"{HOST}:{port}",
                "OWNER": OWNER,
                "READER": READER,
                "NODE_FOLDER": str(modules.resolve()),
            }
            return max(
                ran(["node", "--test", "--test-reporter=spec", "clickhouse.test.mjs"], HERE, environment),
                ran(["go", "test", "-count=1", "-v", "./..."], HERE / "go", environment),
                ran(["mvn", "-B", "-q", "-Dstyle.color=never", "test"], HERE / "java", environment),
            )
        finally:
            process.stop()


def ran(command: list[str], folder: Path, environment: dict[str, str]) -> int:
    """Return 0 if the command succeeded, 1 if not."""
    print("$", *command, flush=True)
    return int(subprocess.run(command, cwd=folder, env=environment, timeout=LIMIT_S).returncode != 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
