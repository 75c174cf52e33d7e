"""Fill a ClickHouse of its own, start `rollbus ui` on it, and let a browser look; `make test-ui` prepares all of it.

python -m tests.ui.run FOLDER_OF_NODE_MODULES [SCREENSHOT_FOLDER]
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from rollbus.consumers.clickhouse.settings import ClickHouseSettings
from rollbus.local.clickhouse import clickhouse_service
from rollbus.local.ports import free_port
from rollbus.local.service import ServiceProcess
from rollbus.local.tether import tethered
from tests.ui.database import fill

PAGE_TESTS = Path(__file__).parent / "page.test.mjs"
LIMIT_S = 600


def main(modules: Path, screenshots: Path | None) -> int:
    """Return the exit status of the browser's tests."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        clickhouse = ServiceProcess(
            clickhouse_service(folder=folder / "data", port=port), log_path=folder / "log", prefix=tethered()
        )
        try:
            clickhouse.start()
            clickhouse.wait_until_healthy()
            fill(ClickHouseSettings(port=port, database="page"))
            return look(port, modules, screenshots, folder)
        finally:
            clickhouse.stop()


def look(port: int, modules: Path, screenshots: Path | None, folder: Path) -> int:
    """Start the page as a user does, and the browser on it."""
    own = {"ROLLBUS_CLICKHOUSE__PORT": str(port), "ROLLBUS_CLICKHOUSE__DATABASE": "page"}
    command = [sys.executable, "-m", "rollbus", "ui", "--port", "0", "--tokenizer", str(write_tokenizer(folder))]
    page = subprocess.Popen(command, env=os.environ | own, stdout=subprocess.PIPE, text=True)
    try:
        assert page.stdout is not None
        found = re.match(r"(http://127\.0\.0\.1:\d+/)", page.stdout.readline())
        assert found, "rollbus ui did not say where it listens"
        told = {"PAGE": found[1], "NODE_FOLDER": str(modules.resolve()), "CLICKHOUSE": f"http://127.0.0.1:{port}/"}
        if screenshots is not None:
            told["SCREENSHOTS"] = str(screenshots.resolve())
        tests = ["node", "--test", "--test-reporter=spec", str(PAGE_TESTS)]
        return subprocess.run(tests, env=os.environ | told, timeout=LIMIT_S).returncode
    finally:
        page.send_signal(signal.SIGINT)
        page.wait(timeout=20)


def write_tokenizer(folder: Path) -> Path:
    """Write a tokenizer in which token n is the word `wn`, as large as the generated ids."""
    from tokenizers import Tokenizer, decoders, models

    tokenizer = Tokenizer(models.WordLevel({f"\u0120w{number}": number for number in range(32_000)}, unk_token="w0"))
    tokenizer.decoder = decoders.ByteLevel()
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
